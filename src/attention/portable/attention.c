/*
 * Causal attention with grouped-query heads on any device: launches kernels/attention/attention.cl
 * or, on GPUs, the same kernels of kernels/attention/gpu.cl.
 *
 * The backward makes two passes: over blocks of queries for dq, and over blocks of keys for dk and
 * dv. The two passes compute seven matrix products where one pass would compute five. But the two
 * passes run in parallel over blocks, without atomics and scratch memory.
 */
#include <stdio.h>
#include <string.h>

#include "args/attention.h"
#include "attention/internal.h"
#include "base/memory.h"
#include "device/device.h"
#include "device/launch.h"
#include "gemm/tuning/tuning.h"
#include "moert/quantize.h"

enum {
    TWO_VECTOR_HEAD_SIZE = 64, /* larger heads use one vector of lanes, so that heads of 128 fit in
                                  48 KB of local memory */
    VECTOR_LANES = 16,
    MOST_OWN = 64,           /* positions of a work-group on GPUs */
    MOST_OWN_HEAD_SIZE = 256 /* larger heads get half of MOST_OWN, so that sums fit in registers */
};

typedef struct launch_shape {
    char program[80];
    const moert_buffer *list; /* blocks of all documents, or NULL */
    size_t blocks, sequences; /* number of blocks in each sequence, and number of sequences; with
                                 `list`, the number of blocks in the list, and 1. In the CPU form
                                 each lane has one position */
    moert_attention_args args;
} launch_shape;

static moert_status find_shape(const moert_attention *attention, launch_shape *found) {
    const size_t head_size = moert_max(attention->head_size, attention->value_size);
    const moert_device_info *info = moert_device_describe(moert_buffer_device(attention->q));
    const bool gpu = info->gpu_form, narrow = strcmp(moert_tuning_family(info), "cpu-avx2") == 0;
    const size_t vectors = head_size <= TWO_VECTOR_HEAD_SIZE && !narrow ? 2 : 1;
    const size_t most = head_size <= MOST_OWN_HEAD_SIZE ? MOST_OWN : MOST_OWN / 2;
    const size_t own = gpu ? most : vectors * VECTOR_LANES;
    launch_shape shape = {.blocks = moert_ceil_div(attention->length, own),
                          .sequences = attention->sequences,
                          .args = {.length = attention->length,
                                   .heads = (int)attention->heads,
                                   .kv_heads = (int)attention->kv_heads,
                                   .window = (int)attention->window,
                                   .scale = attention->scale}};
    snprintf(shape.program, sizeof shape.program,
             "attention/%s -DHEAD_SIZE=%zu -DVALUE_SIZE=%zu -D%s=%zu", gpu ? "gpu" : "attention",
             attention->head_size, attention->value_size, gpu ? "OWN" : "LANE_VECS",
             gpu ? own : vectors);
    if (attention->documents != NULL) {
        MOERT_TRY(moert_documents_blocks(attention->documents, own, &shape.list, &shape.blocks));
        shape.sequences = 1;
    }
    *found = shape;
    return MOERT_OK;
}

/* Rounds `out` to bf16 in a->bf16, unless that is NULL. */
static moert_status round_out(const moert_attention *a) {
    if (a->bf16 == NULL)
        return MOERT_OK;
    return moert_cast_run(&(moert_cast){.size = sizeof(moert_cast),
                                        .from = MOERT_DTYPE_F32,
                                        .to = MOERT_DTYPE_BF16,
                                        .n = a->sequences * a->length * a->heads * a->value_size,
                                        .source = a->out,
                                        .target = a->bf16});
}

moert_status moert_attention_portable_forward(const moert_attention *attention) {
    launch_shape shape;
    MOERT_TRY(find_shape(attention, &shape));
    const moert_grid grid = {shape.blocks, attention->heads, shape.sequences};
    MOERT_TRY(MOERT_RUN(moert_buffer_device(attention->q), shape.program, "attention_forward", grid,
                        MOERT_ARG(shape.list), MOERT_ARG(attention->q), MOERT_ARG(attention->k),
                        MOERT_ARG(attention->v), MOERT_ARG(attention->sinks),
                        MOERT_ARG(attention->out), MOERT_ARG(attention->lse),
                        MOERT_STRUCT(shape.args)));
    return round_out(attention);
}

moert_status moert_attention_portable_backward(const moert_attention *attention) {
    moert_device *device = moert_buffer_device(attention->q);
    launch_shape shape;
    MOERT_TRY(find_shape(attention, &shape));
    const moert_grid queries = {shape.blocks, attention->heads, shape.sequences};
    const moert_grid keys = {shape.blocks, attention->kv_heads, shape.sequences};
    MOERT_TRY(round_out(attention));
    MOERT_TRY(MOERT_RUN(device, shape.program, "attention_backward_q", queries,
                        MOERT_ARG(shape.list), MOERT_ARG(attention->q), MOERT_ARG(attention->k),
                        MOERT_ARG(attention->v), MOERT_ARG(attention->out),
                        MOERT_ARG(attention->lse), MOERT_ARG(attention->dout),
                        MOERT_ARG(attention->dq), MOERT_STRUCT(shape.args)));
    return MOERT_RUN(device, shape.program, "attention_backward_kv", keys, MOERT_ARG(shape.list),
                     MOERT_ARG(attention->q), MOERT_ARG(attention->k), MOERT_ARG(attention->v),
                     MOERT_ARG(attention->out), MOERT_ARG(attention->lse),
                     MOERT_ARG(attention->dout), MOERT_ARG(attention->dk), MOERT_ARG(attention->dv),
                     MOERT_STRUCT(shape.args));
}
