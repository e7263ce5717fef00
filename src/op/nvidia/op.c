/*
 * The nvidia backend of ops: grouped GEMMs of 16-bit numbers on tensor cores, with what follows
 * them in the same kernel. Factors in MXFP8, MXFP4 and NVFP4 become bf16 on the way in
 * (kernels/gemm/nvidia/ahead.h) or, where their blocks lie otherwise, first (op/converted.c).
 */
#include "gemm/backend.h"
#include "gemm/nvidia/tensor_cores.h"
#include "op/op.h"

static bool is_narrow(moert_number type) {
    return type == MOERT_NUMBER_BF16 || type == MOERT_NUMBER_F16;
}

static bool is_result(moert_number type) {
    return type == MOERT_NUMBER_F32 || is_narrow(type);
}

/* The product's result. */
static const moert_operand *result_of(const moert_op_options *o) {
    const moert_operand *results[] = {[MOERT_OP_GEMM_FORWARD] = &o->y,
                                      [MOERT_OP_GEMM_DGRAD] = &o->x,
                                      [MOERT_OP_GEMM_WGRAD] = &o->weight,
                                      [MOERT_OP_GLU] = &o->d,
                                      [MOERT_OP_DGLU] = &o->d};
    return results[o->kind];
}

static bool is_quantised(const moert_operand *operand) {
    return operand->how.size != 0;
}

static bool is_in_fp8_blocks(const moert_operand *operand) {
    return is_quantised(operand) && operand->how.format == MOERT_FORMAT_FP8_BLOCK;
}

/* Whether the factors are, or become, 16-bit numbers of one type. */
static bool are_narrow(const moert_operand *a, const moert_operand *b) {
    const moert_number types[] = {is_quantised(a) ? MOERT_NUMBER_BF16 : a->type,
                                  is_quantised(b) ? MOERT_NUMBER_BF16 : b->type};
    return types[0] == types[1] && is_narrow(types[0]);
}

/* What of a description the kernel cannot do; each text completes "the nvidia backend takes". */
static const char *refuse(const moert_op *op) {
    const moert_op_options *o = &op->options;
    const moert_operand *first = o->kind == MOERT_OP_GEMM_DGRAD ? &o->y : &o->x;
    const moert_operand *second = o->kind == MOERT_OP_GEMM_WGRAD ? &o->y : &o->weight;
    const moert_operand *result = result_of(o);
    const size_t strides = (size_t)o->x.stride | (size_t)o->y.stride |
                           (o->kind == MOERT_OP_GLU ? (size_t)(o->c.stride | o->d.stride) : 0);
    const struct {
        bool taken;
        const char *what;
    } conditions[] = {
        {moert_backend_nvidia.supports(op->device, NULL) == NULL, MOERT_NVIDIA_TAKES},
        {o->kind <= MOERT_OP_GLU, "gemm_forward, gemm_dgrad, gemm_wgrad and glu"},
        {!is_in_fp8_blocks(first) && !is_in_fp8_blocks(second), "fp8-block in both factors"},
        {are_narrow(first, second), "bf16 or f16 factors, beside quantised ones bf16"},
        {is_quantised(result) || is_result(result->type), "results in f32, bf16 or f16"},
        {!o->save_c || is_result(o->c.type), "c in f32, bf16 or f16"},
        {!o->weight.discrete, "stacked weights"},
        {o->permute == MOERT_OP_PERMUTE_NONE, "no permutation"},
        {((o->n | o->k | strides) & 7) == 0, "n, k and strides that are multiples of 8"},
        {o->kind != MOERT_OP_GLU || o->n % 16 == 0, "n of a glu that is a multiple of 16"},
        {o->groups <= MOERT_NVIDIA_MOST_GROUPS, "at most 448 groups"},
        {o->rows > 0 || !o->beta, "at least one row beside beta"},
    };
    for (size_t i = 0; i < sizeof conditions / sizeof conditions[0]; i++)
        if (!conditions[i].taken)
            return conditions[i].what;
    return NULL;
}

/* In blocks along the terms: four of a line, or down the lines, whole ones of a weight. */
bool moert_op_decodes_ahead(const moert_op *op, const moert_op_quantized *factor) {
    const moert_op_options *o = &op->options;
    const bool weight = factor->payload == MOERT_OP_BUFFER_weight;
    const bool down = o->kind == MOERT_OP_GEMM_WGRAD || (weight && o->kind == MOERT_OP_GEMM_DGRAD);
    const size_t block = moert_format_block(factor->how.format);
    if (op->backend != &moert_op_backend_nvidia || !moert_nvidia_uses_wgmma(op->device) ||
        factor->result || factor->flipped || factor->how.transposed ||
        (factor->how.axis == MOERT_AXIS_COLUMN) != down)
        return false;
    return !down    ? factor->columns % (4 * block) == 0
           : weight ? o->n % block == 0
                    : o->row_multiple <= 1; /* a broken promise leaves blocks without room */
}

static moert_status create(moert_op *op) {
    return moert_nvidia_ready(op->device);
}

static void destroy(moert_op *op) {
    (void)op; /* it has no state */
}

static moert_nvidia_rows rows_of(const moert_operand *operand, moert_buffer *buffer) {
    return (moert_nvidia_rows){buffer, (size_t)operand->stride, 0, operand->type};
}

/* A gradient of no rows: beta times the old weights. */
static moert_status clear_weight(const moert_op_options *o, const moert_op_buffers *b) {
    if (o->accumulate)
        return MOERT_OK;
    return moert_buffer_clear(b->weight, 0,
                              o->groups * o->n * o->k * moert_number_bits(o->weight.type) / 8);
}

static moert_status execute(moert_op *op, const moert_op_buffers *b) {
    const moert_op_options *o = &op->options;
    const bool glu = o->kind == MOERT_OP_GLU;
    if (o->rows == 0) /* a wgrad */
        return clear_weight(o, b);
    return moert_nvidia_run(&(moert_nvidia_product){
        .kind = o->kind,
        .groups = {b->ends, o->groups, o->rows},
        .n = o->n,
        .k = o->k,
        .x = rows_of(&o->x, b->x),
        .y = glu ? rows_of(&o->d, b->d) : rows_of(&o->y, b->y),
        .weight = b->weight,
        .weight_type = o->weight.type,
        .accumulate = o->accumulate,
        .alpha = b->alpha,
        .beta = b->beta,
        .bias = b->bias,
        .factor = o->bias_scale ? b->bias_scale : b->prob,
        .factor_stride = 1,
        .amax = b->amax,
        .bias_type = o->bias_type,
        .glu = o->glu,
        .run = op->run,
        .linear_first = o->linear_first,
        .v = rows_of(&o->c, b->c),
        .coded = op->ahead,
        .counts = op->ready,
    });
}

const moert_op_backend moert_op_backend_nvidia = {
    "nvidia", false, false, create, destroy, execute, refuse, &moert_op_backend_nvidia_fp8};
