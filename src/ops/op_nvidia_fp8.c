/*
 * The nvidia backend of ops on FP8 factors: grouped GEMMs of plain ones, or of rows in blocks of
 * 1x128 and weights in blocks of 128x128, on the tensor cores of Hopper GPUs
 * (kernels/nvidia_fp8.cl). They want the terms of both factors contiguous, so that a dgrad
 * transposes the weights first.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "ops/op.h"

enum {
    ARENA_BYTES = 231424, /* 227 KiB less the driver's one */
    LINES = 128,
    COLUMNS = 256,
    BUFFERS = 1,
    STAGES = 4,
    OUTS = 2,
    GROUP = 8,
    BLOCK = 128,
    MOST_GROUPS = 448,
    SPEC_BYTES = 192,
};
_Static_assert(STAGES *(LINES + COLUMNS) * BLOCK + OUTS * 16384 + 128 + 16 * STAGES +
                       4 * MOST_GROUPS <=
                   ARENA_BYTES,
               "the parts of the arena");

typedef struct turned_weight {
    moert_buffer *bytes; /* [G,K,N] */
} turned_weight;

/* What is multiplied by the weight, and the result. */
static const moert_operand *rows_of(const moert_op_options *o) {
    return o->kind == MOERT_OP_GEMM_DGRAD ? &o->y : &o->x;
}
static const moert_operand *result_of(const moert_op_options *o) {
    return o->kind == MOERT_OP_GEMM_DGRAD ? &o->x : &o->y;
}

static bool is_block(const moert_operand *operand) {
    return operand->how.size != 0 && operand->how.format == MOERT_FORMAT_FP8_BLOCK;
}
static bool is_fp8(const moert_operand *operand) {
    return operand->how.size != 0 ? is_block(operand) : moert_number_bits(operand->type) == 8;
}

bool moert_op_has_fp8_factors(const moert_op *op) {
    const moert_op_options *o = &op->options;
    return (o->kind == MOERT_OP_GEMM_FORWARD || o->kind == MOERT_OP_GEMM_DGRAD) &&
           is_fp8(rows_of(o)) && is_fp8(&o->weight);
}

/* What of a description the kernel cannot do; each text completes "the nvidia backend takes". */
static const char *refuse(const moert_op *op) {
    const moert_op_options *o = &op->options;
    const moert_operand *rows = rows_of(o), *result = result_of(o);
    const bool plain = !o->beta && !o->accumulate && !o->bias && !o->row_weight && !o->prob &&
                       !o->amax && o->permute == MOERT_OP_PERMUTE_NONE;
    const bool block = is_block(rows);
    const struct {
        bool taken;
        const char *what;
    } conditions[] = {
        {moert_device_describe(op->device)->nvidia == 90, "GPUs of compute capability 9.0"},
        {block == is_block(&o->weight), "two factors in blocks of 128 or two plain ones, if FP8"},
        {!block || (rows->how.axis == MOERT_AXIS_ROW && o->weight.how.axis == MOERT_AXIS_TILE),
         "fp8-block rows in blocks along rows by weights in tiles"},
        {result->how.size == 0 &&
             (result->type == MOERT_NUMBER_BF16 || result->type == MOERT_NUMBER_F32),
         "bf16 or f32 results of FP8 factors"},
        {!o->weight.discrete, "stacked weights"},
        {plain, "products without beta, biases, factors of rows, permutations and amax"},
        {(o->n | o->k | (size_t)rows->stride) % 16 == 0 && result->stride % 8 == 0,
         "FP8 factors with n, k and strides that are multiples of 16"},
        {o->groups <= MOST_GROUPS, "at most 448 groups"},
    };
    for (size_t i = 0; i < sizeof conditions / sizeof conditions[0]; i++)
        if (!conditions[i].taken)
            return conditions[i].what;
    return NULL;
}

static void destroy(moert_op *op) {
    turned_weight *state = op->state;
    if (state != NULL)
        moert_buffer_destroy(state->bytes);
    free(state);
}

static moert_status create(moert_op *op) {
    const moert_op_options *o = &op->options;
    turned_weight *state;
    MOERT_TRY(moert_tensor_map_ready(op->device));
    MOERT_TRY(MOERT_NEW(&state));
    op->state = state;
    if (o->kind != MOERT_OP_GEMM_DGRAD)
        return MOERT_OK;
    op->workspace_bytes = o->groups * o->n * o->k;
    const moert_status status = moert_buffer_create(op->device, op->workspace_bytes, &state->bytes);
    if (status != MOERT_OK)
        destroy(op);
    return status;
}

/* Transposes the weights of groups with rows. */
static moert_status turn(const moert_op *op, const moert_op_buffers *b) {
    const moert_op_options *o = &op->options;
    const turned_weight *state = op->state;
    enum { TILE = 128 };
    const moert_grid grid = {moert_ceil_div(o->k, TILE), moert_ceil_div(o->n, TILE), o->groups};
    return MOERT_RUN(op->device, "turn", "turn_bytes", grid, MOERT_ARG(b->weight),
                     MOERT_ARG(state->bytes), MOERT_ARG((unsigned)o->n), MOERT_ARG((unsigned)o->k),
                     MOERT_ARG(b->ends));
}

static moert_status execute(moert_op *op, const moert_op_buffers *b) {
    const moert_op_options *o = &op->options;
    const turned_weight *state = op->state;
    const bool forward = o->kind == MOERT_OP_GEMM_FORWARD, scaled = is_block(&o->weight);
    const moert_operand *rows = rows_of(o), *result = result_of(o);
    const size_t terms = forward ? o->k : o->n, columns = forward ? o->n : o->k;
    const unsigned across = (unsigned)moert_ceil_div(o->k, BLOCK); /* tiles of a weight */
    const unsigned down = (unsigned)moert_ceil_div(o->n, BLOCK);
    const moert_tensor_layout a = {.groups = 1,
                                   .rows = o->rows,
                                   .columns = terms,
                                   .stride = scaled ? terms : (size_t)rows->stride,
                                   .box_rows = LINES,
                                   .bytes = true};
    const moert_tensor_layout w = {.groups = o->groups,
                                   .rows = columns,
                                   .columns = terms,
                                   .stride = terms,
                                   .box_rows = COLUMNS,
                                   .bytes = true};
    moert_tensor_map map_a, map_w;
    char spec[SPEC_BYTES];
    if (!forward)
        MOERT_TRY(turn(op, b));
    MOERT_TRY(moert_tensor_map_make(forward ? b->x : b->y, &a, &map_a));
    MOERT_TRY(moert_tensor_map_make(forward ? b->weight : state->bytes, &w, &map_w));
    snprintf(spec, sizeof spec,
             "nvidia_fp8 -DSCALED=%d -DALPHA=%d -DE5M2=%d -DF32=%d -DCOLUMNS=%d -DBUFFERS=%d "
             "-DSTAGES=%d -DOUTS=%d -DGROUP=%d -DARENA=%d",
             scaled, o->alpha, !scaled && rows->type == MOERT_NUMBER_E5M2,
             result->type == MOERT_NUMBER_F32, COLUMNS, BUFFERS, STAGES, OUTS, GROUP, ARENA_BYTES);
    const moert_grid grid = {moert_device_describe(op->device)->compute_units, 1, 1};
    return MOERT_RUN(
        op->device, spec, "nvidia_fp8", grid, moert_argument_struct(&map_a, sizeof map_a),
        moert_argument_struct(&map_w, sizeof map_w), MOERT_ARG(forward ? b->y : b->x),
        MOERT_ARG((size_t)result->stride), MOERT_ARG(b->ends), MOERT_ARG((unsigned)o->groups),
        MOERT_ARG((unsigned)o->rows), MOERT_ARG((unsigned)columns), MOERT_ARG((unsigned)terms),
        MOERT_ARG(forward ? b->x_scale : b->y_scale), MOERT_ARG(forward ? across : down),
        MOERT_ARG(b->weight_scale), MOERT_ARG(down * across), MOERT_ARG(forward ? 1 : across),
        MOERT_ARG(forward ? across : 1), MOERT_ARG(b->alpha));
}

const moert_op_backend moert_op_backend_nvidia_fp8 = {"nvidia", false,   false,  create,
                                                      destroy,  execute, refuse, NULL};
