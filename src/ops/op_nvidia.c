/*
 * The nvidia backend of ops: grouped GEMMs of 16-bit numbers on the tensor cores of Hopper GPUs,
 * with what follows them in the same kernel.
 */
#include "ops/nvidia.h"
#include "ops/op.h"

static bool is_narrow(moert_number type) {
    return type == MOERT_NUMBER_BF16 || type == MOERT_NUMBER_F16;
}

static bool is_result(moert_number type) {
    return type == MOERT_NUMBER_F32 || is_narrow(type);
}

/* The type of a product's result. */
static moert_number result_type(const moert_op_options *o) {
    const moert_number types[] = {[MOERT_OP_GEMM_FORWARD] = o->y.type,
                                  [MOERT_OP_GEMM_DGRAD] = o->x.type,
                                  [MOERT_OP_GEMM_WGRAD] = o->weight.type,
                                  [MOERT_OP_GLU] = o->d.type,
                                  [MOERT_OP_DGLU] = o->d.type};
    return types[o->kind];
}

/* What of a description the kernel cannot do; each text completes "the nvidia backend takes". */
static const char *refuse(const moert_op *op) {
    const moert_op_options *o = &op->options;
    const moert_number factor = o->kind == MOERT_OP_GEMM_DGRAD ? o->y.type : o->x.type;
    const size_t strides = (size_t)o->x.stride | (size_t)o->y.stride |
                           (o->kind == MOERT_OP_GLU ? (size_t)(o->c.stride | o->d.stride) : 0);
    const struct {
        bool taken;
        const char *what;
    } conditions[] = {
        {moert_device_describe(op->device)->nvidia == 90, "GPUs of compute capability 9.0"},
        {o->kind <= MOERT_OP_GLU, "gemm_forward, gemm_dgrad, gemm_wgrad and glu"},
        {op->quantized_count == 0, "plain operands"},
        {is_narrow(factor), "bf16 or f16 factors"},
        {is_result(result_type(o)), "results in f32, bf16 or f16"},
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

static moert_status create(moert_op *op) {
    return moert_tensor_map_ready(op->device);
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
    });
}

const moert_op_backend moert_op_backend_nvidia = {
    "nvidia", false, false, create, destroy, execute, refuse, &moert_op_backend_nvidia_fp8};
