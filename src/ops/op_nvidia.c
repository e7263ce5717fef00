/*
 * The nvidia backend of ops: grouped GEMMs of 16-bit numbers on the tensor cores of Hopper GPUs,
 * kernels/nvidia_gemm.cl. Sums are the tensor cores' float32 sums: repeatable, but within rounding
 * of the other backends' only.
 */
#include <stdio.h>

#include "base/memory.h"
#include "ops/op.h"

enum {
    ARENA_BYTES = 231424, /* 227 KiB less the driver's one */
    STAGES = 4,
    OUTS = 2,
    GROUP = 8,
    STAGE_BYTES = 49152,
    OUT_BYTES = 16384,
    TABLE_BYTES = 256,
    MOST_GROUPS = (ARENA_BYTES - STAGES * STAGE_BYTES - OUTS * OUT_BYTES - TABLE_BYTES) / 4,
    TURNED_BOX = 64, /* lines of a box whose lines are terms */
    SPEC_BYTES = 128,
};

/* How each kind multiplies; the boxes are those of kernels/nvidia_gemm.cl. */
typedef struct orientation {
    moert_op_buffer a, b, result;
    uint32_t box_a, box_b;
} orientation;

static const orientation orientations[] = {
    [MOERT_OP_GEMM_FORWARD] = {MOERT_OP_BUFFER_x, MOERT_OP_BUFFER_weight, MOERT_OP_BUFFER_y, 128,
                               256},
    [MOERT_OP_GEMM_DGRAD] = {MOERT_OP_BUFFER_y, MOERT_OP_BUFFER_weight, MOERT_OP_BUFFER_x, 128,
                             TURNED_BOX},
    [MOERT_OP_GEMM_WGRAD] = {MOERT_OP_BUFFER_y, MOERT_OP_BUFFER_x, MOERT_OP_BUFFER_weight,
                             TURNED_BOX, TURNED_BOX},
};

/* What of a description the kernel cannot do; each text completes "the nvidia backend takes". */
static const char *refuse(const moert_op *op) {
    const moert_op_options *o = &op->options;
    const bool plain = !o->alpha && !o->beta && !o->accumulate && !o->bias && !o->row_weight &&
                       !o->prob && !o->amax && o->permute == MOERT_OP_PERMUTE_NONE;
    const size_t columns = (o->n | o->k | (size_t)o->x.stride | (size_t)o->y.stride) % 8;
    const struct {
        bool taken;
        const char *what;
    } conditions[] = {
        {moert_device_describe(op->device)->nvidia == 90, "GPUs of compute capability 9.0"},
        {o->kind <= MOERT_OP_GEMM_WGRAD, "gemm_forward, gemm_dgrad and gemm_wgrad"},
        {o->x.type == MOERT_NUMBER_BF16 || o->x.type == MOERT_NUMBER_F16, "bf16 or f16"},
        {o->y.type == o->x.type && o->weight.type == o->x.type, "operands of one type"},
        {op->quantized_count == 0, "plain operands"},
        {!o->weight.discrete, "stacked weights"},
        {plain, "products without factors, biases, permutations and amax"},
        {columns == 0, "n, k and strides that are multiples of 8"},
        {o->groups <= MOST_GROUPS, "at most 448 groups"},
    };
    for (size_t i = 0; i < sizeof conditions / sizeof conditions[0]; i++)
        if (!conditions[i].taken)
            return conditions[i].what;
    return NULL;
}

static moert_status create(moert_op *op) {
    return moert_tensor_map_ready(op->device);
}

static void destroy(moert_op *op) {
    (void)op; /* it has no state */
}

/* The map of one operand: the weight in its groups, row matrices as one. */
static moert_status make_map(const moert_op *op, const moert_op_buffers *b, moert_op_buffer which,
                             uint32_t box_rows, moert_tensor_map *map) {
    const moert_op_options *o = &op->options;
    moert_op_buffers buffers = *b;
    const bool weight = which == MOERT_OP_BUFFER_weight, x = which == MOERT_OP_BUFFER_x;
    const moert_tensor_layout tensor = {
        .groups = weight ? o->groups : 1,
        .rows = weight ? o->n : o->rows,
        .columns = weight || x ? o->k : o->n,
        .stride = weight ? o->k : (size_t)(x ? o->x.stride : o->y.stride),
        .box_rows = box_rows,
        .f16 = o->x.type == MOERT_NUMBER_F16,
    };
    return moert_tensor_map_make(*moert_op_buffer_at(&buffers, which), &tensor, map);
}

static moert_status execute(moert_op *op, const moert_op_buffers *b) {
    const moert_op_options *o = &op->options;
    const orientation *how = &orientations[o->kind];
    moert_op_buffers buffers = *b;
    moert_tensor_map map_a, map_b;
    char spec[SPEC_BYTES];
    if (o->rows == 0) /* a wgrad */
        return moert_buffer_clear(b->weight, 0, o->groups * o->n * o->k * sizeof(uint16_t));
    MOERT_TRY(make_map(op, b, how->a, how->box_a, &map_a));
    MOERT_TRY(make_map(op, b, how->b, how->box_b, &map_b));
    snprintf(spec, sizeof spec,
             "nvidia_gemm -DORIENTATION=%d -DF16=%d -DSTAGES=%d -DOUTS=%d -DGROUP=%d -DARENA=%d",
             o->kind, o->x.type == MOERT_NUMBER_F16, STAGES, OUTS, GROUP, ARENA_BYTES);
    const bool forward = o->kind == MOERT_OP_GEMM_FORWARD;
    const size_t stride = how->result == MOERT_OP_BUFFER_weight ? o->k
                          : forward                             ? (size_t)o->y.stride
                                                                : (size_t)o->x.stride;
    const moert_grid grid = {moert_device_describe(op->device)->compute_units, 1, 1};
    return MOERT_RUN(
        op->device, spec, "nvidia_gemm", grid, moert_argument_struct(&map_a, sizeof map_a),
        moert_argument_struct(&map_b, sizeof map_b),
        MOERT_ARG(*moert_op_buffer_at(&buffers, how->result)), MOERT_ARG(stride),
        MOERT_ARG(b->ends), MOERT_ARG((unsigned)o->groups), MOERT_ARG((unsigned)o->n),
        MOERT_ARG((unsigned)(forward ? o->n : o->k)), MOERT_ARG((unsigned)(forward ? o->k : o->n)));
}

const moert_op_backend moert_op_backend_nvidia = {
    "nvidia", false, false, create, destroy, execute, refuse, &moert_op_backend_nvidia_fp8};
