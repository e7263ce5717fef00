/*
 * Attention on the tensor cores of Hopper GPUs, by kernels/attention/nvidia/attention.cl. Before a
 * backward, kernels/attention/stats.cl computes the stats of the queries. The scratch buffer holds
 * in the forward the number of tiles that work-groups have taken, and in the backward these stats.
 */
#include <stdio.h>

#include "args/attention.h"
#include "attention/internal.h"
#include "base/memory.h"
#include "device/buffer.h"
#include "device/device.h"
#include "device/launch.h"
#include "device/nvidia/tensor_map.h"

enum {
    BLOCK_ROWS = MOERT_ATTENTION_BLOCK_ROWS,
    OWN_ROWS = MOERT_ATTENTION_OWN_ROWS,
    COUNTER_BYTES = 16,
    FEW_TIMES = 16,
    SPEC_BYTES = 128,
};
#define LOG2E 1.44269504088896341f

typedef enum pass { FORWARD, BACKWARD_Q, BACKWARD_KV } pass;

const char *moert_attention_nvidia_supports(const moert_device *device, const moert_attention *a) {
    const struct {
        bool holds;
        const char *taken;
    } conditions[] = {
        {moert_device_describe(device)->nvidia == 90, "devices of compute capability 9.0"},
        {a->type == MOERT_DTYPE_BF16, "bf16"},
        {(a->value_size == a->head_size && (a->head_size == 64 || a->head_size == 128)) ||
             (a->head_size == 192 && a->value_size == 128),
         "heads of 64 or 128 elements, or keys of 192 with values of 128"},
    };
    for (size_t i = 0; i < MOERT_COUNT(conditions); i++)
        if (!conditions[i].holds)
            return conditions[i].taken;
    return NULL;
}

/* The blocks of `own` positions into which the batch is divided. With documents, `list` has the
 * `count` blocks of all documents, and sequences is 1. Otherwise `list` is NULL, and each of
 * `sequences` sequences has `count` blocks. */
typedef struct blocks {
    const moert_buffer *list;
    size_t count, sequences;
} blocks;

static moert_status find_blocks(const moert_attention *a, size_t own, blocks *found) {
    *found = (blocks){NULL, moert_ceil_div(a->length, own), a->sequences};
    if (a->documents == NULL)
        return MOERT_OK;
    found->sequences = 1;
    return moert_documents_blocks(a->documents, own, &found->list, &found->count);
}

/* The size of the stats of `count` blocks. */
static size_t stats_bytes(const moert_attention *a, size_t count) {
    return count * a->heads * 2 * BLOCK_ROWS * sizeof(float);
}

size_t moert_attention_nvidia_scratch_bytes(const moert_attention *a) {
    return stats_bytes(a, a->sequences * moert_ceil_div(a->length, BLOCK_ROWS));
}

/* Computes the stats of the queries, and rounds `out` to bf16 in a->bf16. */
static moert_status make_stats(const moert_attention *a) {
    moert_device *device = moert_buffer_device(a->q);
    blocks of;
    char spec[SPEC_BYTES];
    MOERT_TRY(find_blocks(a, BLOCK_ROWS, &of));
    MOERT_TRY(moert_buffer_reserve(device, stats_bytes(a, of.sequences * of.count), a->scratch));
    snprintf(spec, sizeof spec, "attention/stats -DVALUE_SIZE=%zu", a->value_size);
    const moert_grid grid = {of.count * (BLOCK_ROWS / MOERT_STATS_ROWS), a->heads, of.sequences};
    return MOERT_RUN(device, spec, "attention_stats", grid, MOERT_ARG(a->out), MOERT_ARG(a->bf16),
                     MOERT_ARG(a->dout), MOERT_ARG(a->lse), MOERT_ARG(*a->scratch),
                     MOERT_ARG(of.list),
                     MOERT_ARGS(moert_stats_args, .length = a->length, .heads = (int)a->heads));
}

/* The number of heads, over all sequences, whose tiles are taken before those of other heads. The
 * number of heads is the smallest that keeps all units busy, so that the rows of these heads stay
 * in the cache. If there would be fewer than FEW_TIMES groups of heads, it is the number of all
 * heads, since some units wait at the end of each group. */
static size_t heads_at_a_time(const moert_attention *a, size_t heads, size_t units) {
    const size_t all = a->sequences * heads,
                 busy = moert_ceil_div(units, moert_ceil_div(a->length, OWN_ROWS));
    return all < FEW_TIMES * busy ? all : busy;
}

/* The tensor map of bf16 x[sequences, length, columns]. */
static moert_status map_rows(const moert_attention *a, const moert_buffer *x, size_t columns,
                             moert_tensor_map *map) {
    const moert_tensor_layout rows = {.groups = a->sequences,
                                      .rows = a->length,
                                      .columns = columns,
                                      .stride = columns,
                                      .box_rows = BLOCK_ROWS};
    return moert_tensor_map_make((moert_buffer *)x, &rows, map);
}

static moert_status run_pass(const moert_attention *a, pass which, moert_buffer *result,
                             moert_buffer *other) {
    struct {
        moert_tensor_map q, k, v, dout;
    } maps = {.dout = {{0}}};
    char spec[SPEC_BYTES];
    moert_device *device = moert_buffer_device(a->q);
    int sequences, tiles;
    MOERT_TRY(moert_to_int(a->sequences, "number of sequences", &sequences));
    MOERT_TRY(map_rows(a, a->q, a->heads * a->head_size, &maps.q));
    MOERT_TRY(map_rows(a, a->k, a->kv_heads * a->head_size, &maps.k));
    MOERT_TRY(map_rows(a, a->v, a->kv_heads * a->value_size, &maps.v));
    if (which != FORWARD)
        MOERT_TRY(map_rows(a, a->dout, a->heads * a->value_size, &maps.dout));
    snprintf(spec, sizeof spec,
             "attention/nvidia/attention -DPASS=%d -DKEY_SIZE=%zu -DVALUE_SIZE=%zu -DWINDOW=%d "
             "-DARENA=%d",
             which, a->head_size, a->value_size, a->window < a->length, MOERT_ARENA_BYTES);
    blocks of;
    MOERT_TRY(find_blocks(a, OWN_ROWS, &of));
    const size_t heads = which == BACKWARD_KV ? a->kv_heads : a->heads;
    const size_t all = heads * of.sequences * of.count;
    const size_t units = moert_device_describe(device)->compute_units;
    const moert_grid grid = {which == FORWARD ? moert_min(all, units) : all, 1, 1};
    MOERT_TRY(moert_to_int(all, "number of tiles of attention", &tiles));
    return MOERT_RUN(
        device, spec, "nvidia_attention", grid, MOERT_STRUCT(maps), MOERT_ARG(*a->scratch),
        MOERT_ARG(result), MOERT_ARG(other), MOERT_ARG(a->bf16), MOERT_ARG(a->sinks),
        MOERT_ARG(of.list),
        MOERT_ARGS(moert_nvidia_attention_args, .tiles = tiles, .length = (int)a->length,
                   .heads = (int)a->heads, .kv_heads = (int)a->kv_heads, .sequences = sequences,
                   .window = (int)a->window, .section = (int)heads_at_a_time(a, heads, units),
                   .scale = a->scale, .factor = a->scale * LOG2E));
}

moert_status moert_attention_nvidia_forward(const moert_attention *a) {
    MOERT_TRY(moert_buffer_reserve(moert_buffer_device(a->q), COUNTER_BYTES, a->scratch));
    MOERT_TRY(moert_buffer_clear(*a->scratch, 0, COUNTER_BYTES));
    return run_pass(a, FORWARD, a->out, a->lse);
}

moert_status moert_attention_nvidia_backward(const moert_attention *a) {
    MOERT_TRY(make_stats(a));
    MOERT_TRY(run_pass(a, BACKWARD_Q, a->dq, NULL));
    return run_pass(a, BACKWARD_KV, a->dk, a->dv);
}
