/*
 * Causal attention with grouped-query heads: argument checks and launches of kernels/attention.cl,
 * or on GPUs of kernels/attention_gpu.cl, which has the same kernels.
 *
 * The backward takes two passes, one over blocks of queries for dq, one over blocks of keys for dk
 * and dv: seven products of matrices where one pass would take five, but parallel over blocks,
 * without atomics and without scratch memory.
 */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "device/profile.h"
#include "moert/quantize.h"
#include "ops/attention.h"
#include "ops/tuning.h"

enum {
    MAX_HEAD_SIZE = 512,
    TWO_VECTOR_HEAD_SIZE = 64, /* larger heads take one vector of lanes: 48 KB hold D = 128 */
    VECTOR_LANES = 16,
    MOST_OWN =
        64, /* positions of a work-group of a GPU; half of them keep the sums of larger heads */
    MOST_OWN_HEAD_SIZE = 256 /* in registers */
};

/* What the launches need of a description. */
typedef struct launch_shape {
    char program[64];
    size_t blocks; /* of positions, one a lane */
    int heads, kv_heads;
} launch_shape;

static moert_status check_shape(const moert_attention *attention, launch_shape *shape) {
    const size_t heads = attention->heads, kv_heads = attention->kv_heads,
                 head_size = attention->head_size;
    int length, width;
    if (heads == 0 || kv_heads == 0 || heads % kv_heads != 0)
        return MOERT_FAIL(ERROR_USAGE, "%zu query heads cannot share %zu key and value heads",
                          heads, kv_heads);
    if (head_size == 0 || head_size > MAX_HEAD_SIZE)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "attention heads have 1 to %d elements, not %zu",
                          MAX_HEAD_SIZE, head_size);
    if (attention->type != MOERT_NUMBER_F32 && attention->type != MOERT_NUMBER_BF16)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "attention works in f32 or bf16");
    if (attention->type == MOERT_NUMBER_BF16 && attention->scratch == NULL)
        return MOERT_FAIL(ERROR_USAGE, "attention in bf16 needs scratch");
    MOERT_TRY(moert_to_int(attention->length, "length of a sequence", &length));
    MOERT_TRY(moert_to_int(heads * head_size, "width of all query heads", &width));
    MOERT_TRY(moert_to_int(heads, "number of query heads", &shape->heads));
    MOERT_TRY(moert_to_int(kv_heads, "number of key and value heads", &shape->kv_heads));
    const moert_device_info *info = moert_device_describe(moert_buffer_device(attention->q));
    const bool gpu = info->gpu_form, narrow = strcmp(moert_tuning_family(info), "cpu-avx2") == 0;
    const size_t vectors = head_size <= TWO_VECTOR_HEAD_SIZE && !narrow ? 2 : 1;
    const size_t own = head_size <= MOST_OWN_HEAD_SIZE ? MOST_OWN : MOST_OWN / 2;
    shape->blocks = moert_ceil_div(attention->length, gpu ? own : vectors * VECTOR_LANES);
    snprintf(shape->program, sizeof shape->program, "attention%s -DHEAD_SIZE=%zu -D%s=%zu",
             gpu ? "_gpu" : "", head_size, gpu ? "OWN" : "LANE_VECS", gpu ? own : vectors);
    return MOERT_OK;
}

/* For a profile: so many products over the pairs of a query and an earlier key, and every tensor
 * once, so many as wide as q, as k. */
static void tell_work(const moert_attention *attention, size_t products, size_t wide,
                      size_t narrow) {
    const double length = (double)attention->length, size = (double)attention->head_size;
    const double heads = (double)(attention->sequences * attention->heads);
    const double kv_heads = (double)(attention->sequences * attention->kv_heads);
    moert_profile_work(
        moert_buffer_device(attention->q), "attention",
        (double)products * heads * size * length * (length + 1.0),
        sizeof(float) * length *
            (heads * ((double)wide * size + 1.0) + kv_heads * (double)narrow * size));
}

/* out as codes, where they are wanted. */
static moert_status round_out(const moert_attention *a) {
    if (a->codes == NULL)
        return MOERT_OK;
    return moert_cast_run(&(moert_cast){.size = sizeof(moert_cast),
                                        .from = MOERT_NUMBER_F32,
                                        .to = MOERT_NUMBER_BF16,
                                        .n = a->sequences * a->length * a->heads * a->head_size,
                                        .source = a->out,
                                        .target = a->codes});
}

moert_status moert_attention_forward(const moert_attention *attention) {
    launch_shape shape;
    MOERT_TRY(check_shape(attention, &shape));
    const moert_grid grid = {shape.blocks, attention->heads, attention->sequences};
    tell_work(attention, 2, 2, 2);
    if (attention->sequences * attention->length > 0 && moert_attention_nvidia_takes(attention))
        return moert_attention_nvidia_forward(attention);
    MOERT_TRY(MOERT_RUN(moert_buffer_device(attention->q), shape.program, "attention_forward", grid,
                        MOERT_ARG(attention->length), MOERT_ARG(shape.heads),
                        MOERT_ARG(shape.kv_heads), MOERT_ARG(attention->scale),
                        MOERT_ARG(attention->q), MOERT_ARG(attention->k), MOERT_ARG(attention->v),
                        MOERT_ARG(attention->out), MOERT_ARG(attention->lse)));
    return round_out(attention);
}

moert_status moert_attention_backward(const moert_attention *attention) {
    launch_shape shape;
    MOERT_TRY(check_shape(attention, &shape));
    moert_device *device = moert_buffer_device(attention->q);
    const moert_grid queries = {shape.blocks, attention->heads, attention->sequences};
    const moert_grid keys = {shape.blocks, attention->kv_heads, attention->sequences};
    tell_work(attention, 7, 4, 4);
    if (attention->sequences * attention->length > 0 && moert_attention_nvidia_takes(attention))
        return moert_attention_nvidia_backward(attention);
    MOERT_TRY(round_out(attention));
    MOERT_TRY(MOERT_RUN(device, shape.program, "attention_backward_q", queries,
                        MOERT_ARG(attention->length), MOERT_ARG(shape.heads),
                        MOERT_ARG(shape.kv_heads), MOERT_ARG(attention->scale),
                        MOERT_ARG(attention->q), MOERT_ARG(attention->k), MOERT_ARG(attention->v),
                        MOERT_ARG(attention->out), MOERT_ARG(attention->lse),
                        MOERT_ARG(attention->dout), MOERT_ARG(attention->dq)));
    return MOERT_RUN(
        device, shape.program, "attention_backward_kv", keys, MOERT_ARG(attention->length),
        MOERT_ARG(shape.heads), MOERT_ARG(shape.kv_heads), MOERT_ARG(attention->scale),
        MOERT_ARG(attention->q), MOERT_ARG(attention->k), MOERT_ARG(attention->v),
        MOERT_ARG(attention->out), MOERT_ARG(attention->lse), MOERT_ARG(attention->dout),
        MOERT_ARG(attention->dk), MOERT_ARG(attention->dv));
}
