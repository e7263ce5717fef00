/*
 * Attention on the tensor cores of Hopper GPUs. kernels/attention/round.cl first rounds the tensors
 * that several work-groups read to bf16; then kernels/attention/nvidia/attention.cl runs. The
 * scratch buffer holds the rounded rows of all heads, in the forward [T, k | v] and after them the
 * number of tiles taken, in the backward [T, k | v | q | dout] and after them the stats of the
 * queries.
 */
#include <stdio.h>

#include "args/attention.h"
#include "attention/internal.h"
#include "base/memory.h"

enum {
    BLOCK_ROWS = 64,
    STATS_PER_BLOCK = 128,
    STATS_ROWS = 16, /* of a work-group of attention_stats */
    OWN_ROWS = 128,
    ITEMS = 256,
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

/* The blocks of `own` positions of all documents: a list, or NULL and their number in each of
 * *sequences sequences. */
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

static size_t width_of(const moert_attention *a, bool backward) {
    return (a->kv_heads + (backward ? a->heads : 0)) * (a->head_size + a->value_size);
}

/* Offset of the stats in the scratch buffer, or of the number of tiles taken; in words. */
static size_t stats_at(const moert_attention *a, bool backward) {
    return a->sequences * a->length * width_of(a, backward) * sizeof(uint16_t) / sizeof(float);
}

/* Rounds the rows of x to the columns of scratch from *column on, and advances *column. */
static moert_status round_rows(const moert_attention *a, const moert_buffer *x, size_t heads,
                               size_t width, float factor, bool backward, size_t *column) {
    const size_t rows = a->sequences * a->length, columns = heads * width;
    const size_t at = *column, stride = width_of(a, backward);
    char spec[SPEC_BYTES];
    snprintf(spec, sizeof spec, "attention/round -DVALUE_SIZE=%zu", a->value_size);
    *column += columns;
    const moert_grid grid = {moert_ceil_div(rows * (columns / 4), ITEMS), 1, 1};
    return MOERT_RUN(
        moert_buffer_device(x), spec, "round_rows", grid, MOERT_ARG(x), MOERT_ARG(*a->scratch),
        MOERT_ARGS(moert_round_args, .rows = rows, .columns = (int)columns, .factor = factor,
                   .stride = stride, .column = at, .from = backward ? 0 : stats_at(a, false)));
}

/* Rounds dout to the columns from `column` on, computes the stats, and rounds out to a->bf16. */
static moert_status make_stats(const moert_attention *a, const blocks *of, size_t column) {
    const size_t stride = width_of(a, true);
    char spec[SPEC_BYTES];
    snprintf(spec, sizeof spec, "attention/round -DVALUE_SIZE=%zu", a->value_size);
    const moert_grid grid = {of->count * (BLOCK_ROWS / STATS_ROWS), a->heads, of->sequences};
    return MOERT_RUN(moert_buffer_device(a->q), spec, "attention_stats", grid, MOERT_ARG(a->out),
                     MOERT_ARG(a->bf16), MOERT_ARG(a->dout), MOERT_ARG(a->lse),
                     MOERT_ARG(*a->scratch), MOERT_ARG(of->list),
                     MOERT_ARGS(moert_round_args, .length = a->length, .heads = (int)a->heads,
                                .stride = stride, .column = column, .from = stats_at(a, true)));
}

/* The size of the scratch buffer, with the stats of so many blocks. */
static size_t scratch_bytes(const moert_attention *a, bool backward, size_t count) {
    const size_t last =
        backward ? count * a->heads * STATS_PER_BLOCK * sizeof(float) : COUNTER_BYTES;
    return stats_at(a, backward) * sizeof(float) + last;
}

size_t moert_attention_nvidia_scratch_bytes(const moert_attention *a) {
    return scratch_bytes(a, true, a->sequences * moert_ceil_div(a->length, BLOCK_ROWS));
}

/* Fills the scratch buffer; the forward pass reads q in float32 and counts the tiles taken. */
static moert_status prepare(const moert_attention *a, bool backward) {
    size_t column = 0;
    blocks of;
    MOERT_TRY(find_blocks(a, BLOCK_ROWS, &of));
    MOERT_TRY(moert_buffer_reserve(moert_buffer_device(a->q),
                                   scratch_bytes(a, backward, of.sequences * of.count),
                                   a->scratch));
    MOERT_TRY(round_rows(a, a->k, a->kv_heads, a->head_size, 1.0f, backward, &column));
    MOERT_TRY(round_rows(a, a->v, a->kv_heads, a->value_size, 1.0f, backward, &column));
    if (!backward)
        return MOERT_OK;
    MOERT_TRY(round_rows(a, a->q, a->heads, a->head_size, a->scale * LOG2E, true, &column));
    return make_stats(a, &of, column);
}

/* How many heads, counted over all sequences, come at a time: as many as keep all units busy, since
 * their rows stay in the cache meanwhile; all if that would be few times, since some units wait at
 * the end. */
static size_t heads_at_a_time(const moert_attention *a, size_t heads, size_t units) {
    const size_t all = a->sequences * heads,
                 busy = moert_ceil_div(units, moert_ceil_div(a->length, OWN_ROWS));
    return all < FEW_TIMES * busy ? all : busy;
}

static moert_status run_pass(const moert_attention *a, pass which, moert_buffer *result,
                             moert_buffer *other) {
    const bool backward = which != FORWARD;
    const moert_tensor_layout rows = {.groups = a->sequences,
                                      .rows = a->length,
                                      .columns = width_of(a, backward),
                                      .stride = width_of(a, backward),
                                      .box_rows = BLOCK_ROWS};
    const moert_tensor_layout queries = {.groups = a->sequences,
                                         .rows = a->length,
                                         .columns = a->heads * a->head_size * sizeof(float),
                                         .stride = a->heads * a->head_size * sizeof(float),
                                         .box_rows = BLOCK_ROWS,
                                         .bytes = true};
    moert_tensor_map map, queries_map;
    char spec[SPEC_BYTES];
    moert_device *device = moert_buffer_device(a->q);
    int sequences, tiles;
    MOERT_TRY(moert_to_int(a->sequences, "number of sequences", &sequences));
    MOERT_TRY(moert_tensor_map_make(*a->scratch, &rows, &map));
    MOERT_TRY(moert_tensor_map_make((moert_buffer *)a->q, &queries, &queries_map));
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
        device, spec, "nvidia_attention", grid, MOERT_STRUCT(map), MOERT_STRUCT(queries_map),
        MOERT_ARG(*a->scratch), MOERT_ARG(result), MOERT_ARG(other), MOERT_ARG(a->bf16),
        MOERT_ARG(a->sinks), MOERT_ARG(of.list),
        MOERT_ARGS(moert_nvidia_attention_args, .tiles = tiles, .length = (int)a->length,
                   .heads = (int)a->heads, .kv_heads = (int)a->kv_heads, .sequences = sequences,
                   .window = (int)a->window, .section = (int)heads_at_a_time(a, heads, units),
                   .scale = a->scale, .stats_at = stats_at(a, backward)));
}

moert_status moert_attention_nvidia_forward(const moert_attention *attention) {
    MOERT_TRY(prepare(attention, false));
    return run_pass(attention, FORWARD, attention->out, attention->lse);
}

moert_status moert_attention_nvidia_backward(const moert_attention *attention) {
    MOERT_TRY(prepare(attention, true));
    MOERT_TRY(run_pass(attention, BACKWARD_Q, attention->dq, NULL));
    return run_pass(attention, BACKWARD_KV, attention->dk, attention->dv);
}
