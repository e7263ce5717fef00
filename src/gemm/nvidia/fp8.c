/*
 * GEMMs of FP8 operands on the tensor cores of Hopper GPUs (kernels/gemm/nvidia/fp8.cl). Either
 * both operands are plain, or rows are in blocks of 1x128 and weights in blocks of 128x128. The
 * tensor cores need both operands contiguous along the reduction. So a dgrad transposes the weights
 * first, unless the weights are stored transposed, and a wgrad takes only operands stored
 * transposed.
 */
#include <stdio.h>

#include "args/gemm_nvidia.h"
#include "base/memory.h"
#include "base/dtype.h"
#include "device/device.h"
#include "device/launch.h"
#include "device/nvidia/tensor_map.h"
#include "device/share.h"
#include "gemm/nvidia/tensor_cores.h"

enum { MOST_GROUPS = 448, SPEC_BYTES = 192 };
_Static_assert(MOERT_FP8_ENDS_AT(MOERT_FP8_MOST_SCALES) + 4 * MOST_GROUPS <= MOERT_ARENA_BYTES,
               "the ends of the groups fit into the arena");

static moert_buffer *bytes_of(const moert_matrix *o) {
    return o->quantized != NULL ? (moert_buffer *)o->quantized->q : o->buffer;
}

static bool is_block(const moert_matrix *o) {
    return o->quantized != NULL && o->quantized->format == MOERT_FORMAT_FP8_BLOCK;
}

static bool is_fp8(const moert_matrix *o) {
    return o->quantized != NULL ? is_block(o) : moert_dtype_bits(o->type) == 8;
}

bool moert_nvidia_is_fp8(const moert_gemm *gemm) {
    if (gemm->kind == MOERT_GEMM_BIAS_GRAD || gemm->glu.gated)
        return false;
    const moert_matrix a = moert_nvidia_first_operand(gemm), b = moert_nvidia_second_operand(gemm);
    return is_fp8(&a) && is_fp8(&b);
}

/* Whether a quantized operand is stored in the layout that a wgrad needs. The reduction of a wgrad
 * runs over rows, so blocks must span rows, and bytes of consecutive rows must be contiguous. */
static bool is_stored_for_wgrad(const moert_matrix *o) {
    return o->quantized != NULL && o->quantized->axis == MOERT_AXIS_COLUMN &&
           o->quantized->transposed;
}

static bool adds(const moert_gemm *gemm) {
    return gemm->epilogue.addend != MOERT_ADDEND_NONE;
}

static bool is_transposed(const moert_gemm *gemm) {
    return gemm->weight.quantized != NULL && gemm->weight.quantized->transposed;
}

const char *moert_nvidia_fp8_refusal(const moert_device *device, const moert_gemm *gemm) {
    const moert_matrix a = moert_nvidia_first_operand(gemm), b = moert_nvidia_second_operand(gemm);
    const moert_gemm_more *e = gemm->more;
    const bool plain = e->beta == NULL && gemm->bias == NULL && e->row_weight == NULL &&
                       e->prob == NULL && e->amax == NULL && gemm->x.gather == NULL &&
                       gemm->y.gather == NULL && e->places == NULL;
    const bool wgrad = gemm->kind == MOERT_GEMM_WGRAD, block = is_block(&a);
    const size_t rows = gemm->groups.rows, n = gemm->n, k = gemm->k;
    const size_t lengths = n | k | a.stride | (wgrad ? rows : 0);
    const moert_nvidia_condition conditions[] = {
        {moert_device_describe(device)->nvidia == 90, "GPUs of compute capability 9.0, if FP8"},
        {block == is_block(&b), "two operands of fp8-block or two plain ones, if FP8"},
        {!wgrad || (is_stored_for_wgrad(&a) && is_stored_for_wgrad(&b)),
         "transposed operands of fp8-block in blocks along columns, for an FP8 gemm_wgrad"},
        {wgrad || !block ||
             (a.quantized->axis == MOERT_AXIS_ROW && b.quantized->axis == MOERT_AXIS_TILE),
         "rows of fp8-block in blocks along rows, by weights in tiles"},
        {moert_gemm_output(gemm)->type == MOERT_DTYPE_BF16 ||
             moert_gemm_output(gemm)->type == MOERT_DTYPE_F32,
         "bf16 or f32 results of FP8 operands"},
        {!gemm->more->discrete, "stacked weights"},
        {gemm->kind != MOERT_GEMM_FORWARD || !is_transposed(gemm),
         "weights as they are, not transposed, in an FP8 gemm_forward"},
        {plain, "FP8 GEMMs without beta, bias, row_weight, prob, permutation, amax and places"},
        {!adds(gemm) || (wgrad && gemm->weight.type == MOERT_DTYPE_F32),
         "FP8 GEMMs without an old value, except in gemm_wgrad in f32"},
        {lengths % 16 == 0 && moert_nvidia_result_operand(gemm).stride % 8 == 0,
         "FP8 operands with n, k, strides and, in gemm_wgrad, rows that are multiples of 16"},
        {!wgrad || (gemm->more->row_multiple > 0 && gemm->more->row_multiple % 16 == 0),
         "an FP8 gemm_wgrad with the promise of a row_multiple of 16"},
        {gemm->groups.count <= MOST_GROUPS, "at most 448 groups"},
        {moert_max(rows, gemm->groups.count * n) < (UINT32_MAX / moert_max(n, k)) * MOERT_FP8_K,
         "fewer than 2^32 scales"},
    };
    return moert_nvidia_refusal(conditions, MOERT_COUNT(conditions));
}

size_t moert_nvidia_fp8_bytes(const moert_gemm *gemm) {
    const bool transposes = gemm->kind == MOERT_GEMM_DGRAD && !is_transposed(gemm);
    return transposes ? gemm->groups.count * gemm->n * gemm->k : 0;
}

/* Transposes the weights of groups with rows. */
static moert_status transpose_weights(const moert_gemm *gemm, moert_buffer *transposed) {
    enum { TILE = 128 };
    const moert_matrix weight = moert_nvidia_second_operand(gemm);
    const moert_grid grid = {moert_ceil_div(gemm->k, TILE), moert_ceil_div(gemm->n, TILE),
                             gemm->groups.count};
    return MOERT_RUN(moert_buffer_device(gemm->groups.ends), "op/transpose", "transpose_bytes",
                     grid, MOERT_ARG(bytes_of(&weight)), MOERT_ARG(transposed),
                     MOERT_ARG((unsigned)gemm->n), MOERT_ARG((unsigned)gemm->k),
                     MOERT_ARG(gemm->groups.ends));
}

/* Kernel arguments with the strides of the scales s, of consecutive blocks, and t
 * (kernels/gemm/nvidia/fp8.cl). */
static moert_fp8_args with_strides(size_t s_line, size_t t_group, size_t t_block, size_t t_column) {
    return (moert_fp8_args){.s_line = (uint32_t)s_line,
                            .s_block = 1,
                            .t_group = (uint32_t)t_group,
                            .t_block = (uint32_t)t_block,
                            .t_column = (uint32_t)t_column};
}

static moert_fp8_args strides_of(const moert_gemm *gemm) {
    const size_t across = moert_ceil_div(gemm->k, MOERT_FP8_K),
                 down = moert_ceil_div(gemm->n, MOERT_FP8_K);
    if (gemm->kind == MOERT_GEMM_FORWARD)
        return with_strides(across, down * across, 1, across);
    if (gemm->kind == MOERT_GEMM_DGRAD)
        return is_transposed(gemm) ? with_strides(down, down * across, 1, down)
                                   : with_strides(down, down * across, across, 1);
    const moert_quantized *x = gemm->x.quantized, *y = gemm->y.quantized;
    const bool x_rows = x->scale_rows, y_rows = y->scale_rows;
    /* x and y have room for equally many blocks */
    moert_fp8_args args =
        with_strides(y_rows ? 1 : y->blocks, 0, x_rows ? gemm->k : 1, x_rows ? 1 : x->blocks);
    args.s_block = y_rows ? (uint32_t)gemm->n : 1;
    args.blocks = (uint32_t)x->blocks;
    return args;
}

/* Makes the tensor maps of both operands. `transposed`, unless NULL, replaces operand B. */
static moert_status make_maps(const moert_gemm *gemm, moert_buffer *transposed,
                              moert_tensor_map *map_a, moert_tensor_map *map_b) {
    const moert_matrix a = moert_nvidia_first_operand(gemm), b = moert_nvidia_second_operand(gemm);
    const bool forward = gemm->kind == MOERT_GEMM_FORWARD, wgrad = gemm->kind == MOERT_GEMM_WGRAD;
    const size_t reduction = wgrad ? gemm->groups.rows : forward ? gemm->k : gemm->n;
    moert_tensor_layout tensor = {.groups = 1, .columns = reduction, .bytes = true};
    tensor.rows = wgrad ? gemm->n : gemm->groups.rows;
    tensor.stride = is_block(&a) ? reduction : a.stride; /* quantized operands are dense */
    tensor.box_rows = MOERT_NVIDIA_LINES;
    MOERT_TRY(moert_tensor_map_make(bytes_of(&a), &tensor, map_a));
    tensor.groups = wgrad ? 1 : gemm->groups.count;
    tensor.rows = forward ? gemm->n : gemm->k;
    tensor.stride = reduction;
    tensor.box_rows = MOERT_FP8_COLUMNS;
    return moert_tensor_map_make(transposed != NULL ? transposed : bytes_of(&b), &tensor, map_b);
}

moert_status moert_nvidia_fp8(const moert_gemm *gemm, moert_buffer *transposed) {
    const moert_matrix a = moert_nvidia_first_operand(gemm), b = moert_nvidia_second_operand(gemm);
    const bool forward = gemm->kind == MOERT_GEMM_FORWARD, wgrad = gemm->kind == MOERT_GEMM_WGRAD;
    moert_device *device = moert_buffer_device(gemm->groups.ends);
    moert_tensor_map maps[2]; /* of a and b */
    char spec[SPEC_BYTES];
    if (transposed != NULL)
        MOERT_TRY(transpose_weights(gemm, transposed));
    MOERT_TRY(make_maps(gemm, transposed, &maps[0], &maps[1]));
    snprintf(spec, sizeof spec,
             "gemm/nvidia/fp8 -DWGRAD=%d -DSCALED=%d -DE5M2=%d -DF32=%d -DADDS=%d -DARENA=%d",
             wgrad, is_block(&a), !is_block(&a) && moert_gemm_type(gemm) == MOERT_DTYPE_E5M2,
             moert_gemm_output(gemm)->type == MOERT_DTYPE_F32, adds(gemm), MOERT_ARENA_BYTES);
    moert_fp8_args args = strides_of(gemm);
    args.ldc = moert_nvidia_result_operand(gemm).stride;
    args.groups = (uint32_t)gemm->groups.count;
    args.lines = (uint32_t)(wgrad ? gemm->n : gemm->groups.rows);
    args.columns = (uint32_t)(forward ? gemm->n : gemm->k);
    args.terms = (uint32_t)(forward ? gemm->k : gemm->n);
    const moert_grid grid = {moert_device_units(device), 1, 1};
    return MOERT_RUN(device, spec, "nvidia_fp8", grid, MOERT_STRUCT(maps),
                     MOERT_ARG(moert_nvidia_result_operand(gemm).buffer),
                     MOERT_ARG(gemm->groups.ends),
                     MOERT_ARG(a.quantized != NULL ? a.quantized->scale : NULL),
                     MOERT_ARG(b.quantized != NULL ? b.quantized->scale : NULL),
                     MOERT_ARG(gemm->epilogue.alpha), MOERT_STRUCT(args));
}
