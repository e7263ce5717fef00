/* Lowers an op to a moert_gemm, and decides how the backend takes each operand. */
#include <stdint.h>

#include "op/op.h"

static bool is_quantized(const moert_operand *operand) {
    return operand->how.size != 0;
}

static const moert_conversion *conversion_of(const moert_op *op, moert_op_buffer payload) {
    for (size_t i = 0; i < op->quantized_count; i++)
        if (op->quantized[i].payload == payload)
            return &op->conversions[i];
    return NULL;
}

static const moert_operand *first_of(const moert_op *op) {
    return moert_op_operand(&op->options, moert_op_roles_of(op->options.kind).first);
}

static const moert_operand *second_of(const moert_op *op) {
    return moert_op_operand(&op->options, moert_op_roles_of(op->options.kind).second);
}

/* The dtype of the operands: the dtype of the plain operand or, if both operands are quantized, the
 * dtype of the decoded values. */
static moert_dtype operand_type(const moert_op *op) {
    return !is_quantized(first_of(op))    ? first_of(op)->type
           : !is_quantized(second_of(op)) ? second_of(op)->type
                                          : op->backend->decoded;
}

/* The type of the dequantized values. bf16 holds the values of every format except FP8_BLOCK
 * exactly: elements and scales have at most 4 significant bits each. */
static moert_dtype value_type(const moert_op *op, const moert_operand *operand) {
    const moert_dtype decoded = op->backend->decoded;
    return operand->how.format != MOERT_FORMAT_FP8_BLOCK && decoded == operand_type(op)
               ? decoded
               : MOERT_DTYPE_F32;
}

moert_dtype moert_op_value_type(const moert_op *op, const moert_op_quantized *q) {
    return q->result ? MOERT_DTYPE_F32 : value_type(op, moert_op_operand(&op->options, q->payload));
}

/* The buffer that the GEMM gets: the caller's buffer or, for a quantized matrix, the buffer of its
 * values; NULL if the backend needs no values. */
static moert_buffer *gemm_buffer(const moert_op *op, const moert_op_buffers *b,
                                 moert_op_buffer which) {
    return conversion_of(op, which) != NULL ? op->values[which] : *moert_op_buffer_at(b, which);
}

static moert_matrix lower_operand(const moert_op *op, const moert_op_buffers *b,
                                  moert_op_buffer which, size_t width) {
    const moert_operand *operand = moert_op_operand(&op->options, which);
    moert_matrix m = {.buffer = gemm_buffer(op, b, which),
                      .type = operand->type,
                      .stride = (size_t)operand->stride};
    if (!is_quantized(operand))
        return m;
    const moert_conversion *c = conversion_of(op, which);
    m.type = value_type(op, operand);
    m.stride = width;
    if (c->direct)
        m.quantized = c->discrete_quantized != NULL ? c->discrete_quantized : &c->quantized;
    return m;
}

static moert_matrix lower_result(const moert_op *op, const moert_op_buffers *b,
                                 moert_op_buffer which, size_t width) {
    const moert_operand *result = moert_op_operand(&op->options, which);
    moert_matrix m = {.buffer = gemm_buffer(op, b, which), .stride = width};
    if (!is_quantized(result)) {
        m.type = result->type;
        m.stride = (size_t)result->stride;
    }
    return m;
}

/* The row matrix x or y of the GEMM. */
static moert_matrix lower_rows(const moert_op *op, const moert_op_buffers *b,
                               const moert_op_rows *rows, moert_op_buffer which) {
    moert_matrix m = rows->input    ? lower_operand(op, b, which, rows->width)
                     : rows->output ? lower_result(op, b, which, rows->width)
                                    : (moert_matrix){.stride = 0};
    m.gather = rows->gathered ? b->gather : NULL;
    return m;
}

/* Stand-ins for the buffers of an execute, which are only tested for NULL. */
static moert_op_buffers stand_ins(const moert_op *op) {
    moert_op_buffers b = MOERT_OP_BUFFERS_INIT;
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        if (op->needs[i].needed)
            *moert_op_buffer_at(&b, i) = (moert_buffer *)(uintptr_t)op;
    return b;
}

/* The GLU of an op; without a GLU, only the form is set. */
static moert_glu lower_glu(const moert_op *op, const moert_op_buffers *b) {
    const moert_op_options *o = &op->options;
    const bool forward = o->kind == MOERT_OP_GLU, backward = o->kind == MOERT_OP_DGLU;
    moert_glu glu = {.form = o->glu, .prob_stride = 1};
    if (!forward && !backward)
        return glu;
    const moert_matrix d =
        lower_result(op, b, MOERT_OP_BUFFER_d, moert_op_columns(o, MOERT_OP_BUFFER_d));
    glu.gated = forward ? MOERT_GATED : MOERT_GATED_BACKWARD;
    glu.rows = o->rows;
    glu.width = op->glu_width;
    glu.run = op->run;
    glu.linear_first = o->linear_first;
    glu.prob = b->prob;
    glu.type = d.type;
    glu.ldh = d.stride;
    *(forward ? &glu.h : &glu.dv) = d.buffer;
    if (forward)
        return glu;
    glu.v = b->c;
    glu.from = o->c.type;
    glu.ldv = (size_t)o->c.stride;
    glu.dprob = b->dprob;
    glu.dbias = b->dbias;
    return glu;
}

/* The settings of an op that a plain GEMM does not have. A dGLU with an offset ignores alpha and
 * beta, as in cuDNN. Global scales multiply the sums of a dGLU. */
static moert_gemm_more lower_more(const moert_op *op, const moert_op_buffers *b, bool scales) {
    const moert_op_options *o = &op->options;
    return (moert_gemm_more){.weights =
                                 op->discrete_values != NULL ? op->discrete_values : b->weights,
                             .discrete = o->weight.discrete,
                             .divisor = op->x.divisor,
                             .row_multiple = o->row_multiple,
                             .workspace = (moert_workspace *)&op->work,
                             .bias_type = o->bias_type,
                             .beta = scales ? b->beta : NULL,
                             .bias_scale = b->bias_scale,
                             .row_weight = b->row_weight,
                             .prob = moert_op_has_glu(op) ? NULL : b->prob,
                             .acc_scale = o->kind == MOERT_OP_DGLU ? op->alphas : NULL,
                             .amax = b->amax};
}

moert_gemm moert_op_lower(const moert_op *op, const moert_op_buffers *buffers,
                          moert_gemm_more *more) {
    const moert_op_options *o = &op->options;
    const moert_op_buffers substitutes = stand_ins(op);
    const moert_op_buffers *b = buffers != NULL ? buffers : &substitutes;
    const bool dglu = o->kind == MOERT_OP_DGLU, scales = !dglu || o->glu.offset == 0.0f;
    const moert_buffer *alpha = op->alphas != NULL && !dglu ? op->alphas : b->alpha;
    *more = lower_more(op, b, scales);
    moert_gemm gemm = {
        .kind = moert_op_roles_of(o->kind).gemm,
        .groups = {b->ends, o->groups, o->rows},
        .n = o->n,
        .k = o->k,
        .x = lower_rows(op, b, &op->x, MOERT_OP_BUFFER_x),
        .y = lower_rows(op, b, &op->y, MOERT_OP_BUFFER_y),
        .weight = {.buffer = gemm_buffer(op, b, MOERT_OP_BUFFER_weight), .type = o->weight.type},
        .bias = b->bias,
        .glu = lower_glu(op, b),
        .epilogue = {.alpha = scales ? alpha : NULL,
                     .addend = o->accumulate ? MOERT_ADDEND_LAST : MOERT_ADDEND_NONE},
        .more = more,
    };
    if (o->kind != MOERT_OP_GEMM_WGRAD)
        gemm.weight = lower_operand(op, b, MOERT_OP_BUFFER_weight, o->k);
    if (o->kind == MOERT_OP_GLU)
        gemm.y = (moert_matrix){b->c, o->c.type, .stride = (size_t)o->c.stride};
    return gemm;
}

static bool is_fp8(const moert_operand *operand) {
    return is_quantized(operand) ? operand->how.format == MOERT_FORMAT_FP8_BLOCK
                                 : moert_dtype_bits(operand->type) == 8;
}

bool moert_op_has_fp8_operands(const moert_op *op) {
    return op->options.kind <= MOERT_OP_GEMM_WGRAD && is_fp8(first_of(op)) && is_fp8(second_of(op));
}

static const char *refusal(const moert_op *op) {
    moert_gemm_more more;
    const moert_gemm gemm = moert_op_lower(op, NULL, &more);
    /* cppcheck-suppress returnDanglingLifetime ; the text is static */
    return op->backend->supports(op->device, &gemm);
}

const char *moert_op_plan(moert_op *op) {
    for (size_t i = 0; i < op->quantized_count; i++) {
        const moert_op_quantized *q = &op->quantized[i];
        op->conversions[i] = (moert_conversion){
            .as = q,
            .direct = !q->result,
            .quantized = {.format = q->how.format,
                          .axis = q->how.axis,
                          .transposed = q->transposed || q->how.transposed,
                          .blocks = q->blocks},
        };
    }
    const char *all_direct = refusal(op);
    if (all_direct == NULL)
        return NULL;
    for (size_t i = 0; i < op->quantized_count; i++)
        op->conversions[i].direct = false;
    for (size_t i = 0; i < op->quantized_count; i++) {
        op->conversions[i].direct = !op->quantized[i].result;
        if (op->conversions[i].direct && refusal(op) != NULL)
            op->conversions[i].direct = false;
    }
    return refusal(op) != NULL ? all_direct : NULL;
}
