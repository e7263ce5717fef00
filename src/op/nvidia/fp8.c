/*
 * The nvidia backend of ops on FP8 factors: grouped GEMMs of plain ones, or of rows in blocks of
 * 1x128 and weights in blocks of 128x128, on the tensor cores of Hopper GPUs
 * (kernels/gemm/nvidia/fp8.cl). These want the terms of both factors contiguous: a dgrad transposes
 * the weights first, unless they are stored so, and a wgrad takes only factors that are.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "op/op.h"

enum {
    LINES = 128,
    COLUMNS = 256,
    STAGES = 4,
    OUTS = 1,
    GROUP = 8,
    BLOCK = 128,
    TABLE_BYTES = 128 + (32 + 4 * (LINES + COLUMNS)) * STAGES, /* barriers, tiles, scales */
    MOST_GROUPS = 448,
    SPEC_BYTES = 192,
};
_Static_assert(STAGES *(LINES + COLUMNS) * BLOCK + OUTS * 16384 + TABLE_BYTES + 4 * MOST_GROUPS <=
                   MOERT_ARENA_BYTES,
               "what lies in the arena");

typedef struct turned_weight {
    moert_buffer *bytes; /* [G,K,N] */
} turned_weight;

/* What each kind multiplies; the result has the lines of a and the columns of b. */
typedef struct orientation {
    moert_op_buffer a, b, result, scale_a, scale_b;
} orientation;
#define SCALED(a, b, result)                                                                       \
    {                                                                                              \
        MOERT_OP_BUFFER_##a, MOERT_OP_BUFFER_##b, MOERT_OP_BUFFER_##result,                        \
            MOERT_OP_BUFFER_##a##_scale, MOERT_OP_BUFFER_##b##_scale                               \
    }
static const orientation orientations[] = {[MOERT_OP_GEMM_FORWARD] = SCALED(x, weight, y),
                                           [MOERT_OP_GEMM_DGRAD] = SCALED(y, weight, x),
                                           [MOERT_OP_GEMM_WGRAD] = SCALED(y, x, weight)};
#undef SCALED

static const moert_operand *operand_of(const moert_op_options *o, moert_op_buffer which) {
    return which == MOERT_OP_BUFFER_x ? &o->x : which == MOERT_OP_BUFFER_y ? &o->y : &o->weight;
}

static bool is_block(const moert_operand *operand) {
    return operand->how.size != 0 && operand->how.format == MOERT_FORMAT_FP8_BLOCK;
}
static bool is_fp8(const moert_operand *operand) {
    return operand->how.size != 0 ? is_block(operand) : moert_number_bits(operand->type) == 8;
}

bool moert_op_has_fp8_factors(const moert_op *op) {
    const moert_op_options *o = &op->options;
    return o->kind <= MOERT_OP_GEMM_WGRAD && is_fp8(operand_of(o, orientations[o->kind].a)) &&
           is_fp8(operand_of(o, orientations[o->kind].b));
}

/* Blocks of a wgrad lie along the rows, and so do its bytes. */
static bool is_stored_for_wgrad(const moert_operand *operand) {
    return operand->how.axis == MOERT_AXIS_COLUMN && operand->how.transposed;
}

/* What of a description the kernel cannot do; each text completes "the nvidia backend takes". */
static const char *refuse(const moert_op *op) {
    const moert_op_options *o = &op->options;
    const moert_operand *a = operand_of(o, orientations[o->kind].a);
    const moert_operand *b = operand_of(o, orientations[o->kind].b);
    const moert_operand *result = operand_of(o, orientations[o->kind].result);
    const bool plain = !o->beta && !o->accumulate && !o->bias && !o->row_weight && !o->prob &&
                       !o->amax && o->permute == MOERT_OP_PERMUTE_NONE;
    const bool wgrad = o->kind == MOERT_OP_GEMM_WGRAD, block = is_block(a);
    const size_t lengths = o->n | o->k | (size_t)a->stride | (wgrad ? o->rows : 0);
    const struct {
        bool taken;
        const char *what;
    } conditions[] = {
        {moert_device_describe(op->device)->nvidia == 90, "GPUs of compute capability 9.0, if FP8"},
        {block == is_block(b), "two factors of fp8-block or two plain ones, if FP8"},
        {!wgrad || (block && is_stored_for_wgrad(a) && is_stored_for_wgrad(b)),
         "transposed factors of fp8-block in blocks along columns, for an FP8 gemm_wgrad"},
        {wgrad || !block || (a->how.axis == MOERT_AXIS_ROW && b->how.axis == MOERT_AXIS_TILE),
         "rows of fp8-block in blocks along rows, by weights in tiles"},
        {result->how.size == 0 &&
             (result->type == MOERT_NUMBER_BF16 || result->type == MOERT_NUMBER_F32),
         "bf16 or f32 results of FP8 factors"},
        {!o->weight.discrete, "stacked weights"},
        {o->kind != MOERT_OP_GEMM_FORWARD || !o->weight.how.transposed,
         "weights as they are, not transposed, in an FP8 gemm_forward"},
        {plain, "products without beta, biases, factors of rows, permutations and amax"},
        {lengths % 16 == 0 && result->stride % 8 == 0,
         "FP8 factors with n, k, strides and, in gemm_wgrad, rows that are multiples of 16"},
        {!wgrad || (o->row_multiple > 0 && o->row_multiple % 16 == 0),
         "an FP8 gemm_wgrad with the promise of a row_multiple of 16"},
        {o->groups <= MOST_GROUPS, "at most 448 groups"},
        {moert_max(o->rows, o->groups * o->n) < (UINT32_MAX / moert_max(o->n, o->k)) * BLOCK,
         "fewer than 2^32 scales"},
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
    if (o->kind != MOERT_OP_GEMM_DGRAD || o->weight.how.transposed)
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
    return MOERT_RUN(op->device, "op/turn", "turn_bytes", grid, MOERT_ARG(b->weight),
                     MOERT_ARG(state->bytes), MOERT_ARG((unsigned)o->n), MOERT_ARG((unsigned)o->k),
                     MOERT_ARG(b->ends));
}

/* Where the scales lie: strides of the kernel's s and t, see there. */
typedef struct strides {
    unsigned line, group, block, column;
} strides;

static strides strides_of(const moert_op *op) {
    const moert_op_options *o = &op->options;
    const unsigned across = (unsigned)moert_ceil_div(o->k, BLOCK); /* tiles of a weight */
    const unsigned down = (unsigned)moert_ceil_div(o->n, BLOCK);
    if (o->kind == MOERT_OP_GEMM_FORWARD)
        return (strides){across, down * across, 1, across};
    if (o->kind == MOERT_OP_GEMM_DGRAD)
        return o->weight.how.transposed ? (strides){down, down * across, 1, down}
                                        : (strides){down, down * across, across, 1};
    const unsigned room = (unsigned)op->quantized[0].blocks; /* of both factors */
    return (strides){room, 0, 1, room};
}

/* Maps of both factors, the weight of a dgrad being the transposed one. */
static moert_status make_maps(const moert_op *op, const moert_op_buffers *b,
                              moert_tensor_map *map_a, moert_tensor_map *map_b) {
    const moert_op_options *o = &op->options;
    const orientation *how = &orientations[o->kind];
    const turned_weight *state = op->state;
    const bool forward = o->kind == MOERT_OP_GEMM_FORWARD, wgrad = o->kind == MOERT_OP_GEMM_WGRAD;
    const size_t terms = wgrad ? o->rows : forward ? o->k : o->n;
    const bool stored_so = is_block(operand_of(o, how->a)); /* quantised ones have no stride */
    moert_op_buffers buffers = *b;
    moert_tensor_layout tensor = {.groups = 1, .columns = terms, .bytes = true};
    tensor.rows = wgrad ? o->n : o->rows;
    tensor.stride = stored_so ? terms : (size_t)operand_of(o, how->a)->stride;
    tensor.box_rows = LINES;
    MOERT_TRY(moert_tensor_map_make(*moert_op_buffer_at(&buffers, how->a), &tensor, map_a));
    tensor.groups = wgrad ? 1 : o->groups;
    tensor.rows = forward ? o->n : o->k;
    tensor.stride = terms;
    tensor.box_rows = COLUMNS;
    return moert_tensor_map_make(state->bytes != NULL ? state->bytes
                                                      : *moert_op_buffer_at(&buffers, how->b),
                                 &tensor, map_b);
}

static moert_status execute(moert_op *op, const moert_op_buffers *b) {
    const moert_op_options *o = &op->options;
    const orientation *how = &orientations[o->kind];
    const moert_operand *a = operand_of(o, how->a), *result = operand_of(o, how->result);
    const bool forward = o->kind == MOERT_OP_GEMM_FORWARD, wgrad = o->kind == MOERT_OP_GEMM_WGRAD;
    const strides lie = strides_of(op);
    moert_op_buffers buffers = *b;
    moert_tensor_map map_a, map_b;
    char spec[SPEC_BYTES];
    if (o->rows == 0) /* a wgrad */
        return moert_buffer_clear(b->weight, 0, moert_op_buffer_bytes(op, "weight"));
    if (((const turned_weight *)op->state)->bytes != NULL)
        MOERT_TRY(turn(op, b));
    MOERT_TRY(make_maps(op, b, &map_a, &map_b));
    snprintf(spec, sizeof spec,
             "gemm/nvidia/fp8 -DWGRAD=%d -DSCALED=%d -DE5M2=%d -DF32=%d "
             "-DSTAGES=%d -DOUTS=%d -DGROUP=%d -DARENA=%d",
             wgrad, is_block(a), !is_block(a) && a->type == MOERT_NUMBER_E5M2,
             result->type == MOERT_NUMBER_F32, STAGES, OUTS, GROUP, MOERT_ARENA_BYTES);
    const moert_grid grid = {moert_device_describe(op->device)->compute_units, 1, 1};
    return MOERT_RUN(
        op->device, spec, "nvidia_fp8", grid, moert_argument_struct(&map_a, sizeof map_a),
        moert_argument_struct(&map_b, sizeof map_b),
        MOERT_ARG(*moert_op_buffer_at(&buffers, how->result)),
        MOERT_ARG(wgrad ? o->k : (size_t)result->stride), MOERT_ARG(b->ends),
        MOERT_ARG((unsigned)o->groups), MOERT_ARG((unsigned)(wgrad ? o->n : o->rows)),
        MOERT_ARG((unsigned)(forward ? o->n : o->k)), MOERT_ARG((unsigned)(forward ? o->k : o->n)),
        MOERT_ARG(*moert_op_buffer_at(&buffers, how->scale_a)), MOERT_ARG(lie.line),
        MOERT_ARG(*moert_op_buffer_at(&buffers, how->scale_b)), MOERT_ARG(lie.group),
        MOERT_ARG(lie.block), MOERT_ARG(lie.column), MOERT_ARG(b->alpha));
}

const moert_op_backend moert_op_backend_nvidia_fp8 = {"nvidia", false,   false,  create,
                                                      destroy,  execute, refuse, NULL};
