/* Lowers an op to a moert_gemm, and decides how the backend takes each operand. */
#include <stdint.h>

#include "op/op.h"

/* An operand or a result as the GEMM gets it. */
typedef struct lowered {
    moert_dtype type;
    size_t stride;
    bool wide; /* this operand is float32, and the other one has a smaller type */
    const moert_quantized *quantized;
} lowered;

static bool is_quantized(const moert_operand *operand) {
    return operand->how.size != 0;
}

static const moert_conversion *conversion_of(const moert_op *op, moert_op_buffer payload) {
    for (size_t i = 0; i < op->quantized_count; i++)
        if (op->quantized[i].payload == payload)
            return &op->conversions[i];
    return NULL;
}

/* The operands of an op: x or y (in wgrad x), and the weight (in wgrad y). */
static const moert_operand *first_of(const moert_op *op) {
    return op->x.input ? &op->options.x : &op->options.y;
}

static const moert_operand *second_of(const moert_op *op) {
    return op->options.kind == MOERT_OP_GEMM_WGRAD ? &op->options.y : &op->options.weight;
}

/* The operands' dtype: that of the plain operand or, if both are quantized, that of
 * decoded values. */
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
    return q->result                              ? MOERT_DTYPE_F32
           : q->payload == MOERT_OP_BUFFER_weight ? value_type(op, &op->options.weight)
           : q->payload == MOERT_OP_BUFFER_x      ? value_type(op, &op->options.x)
                                                  : value_type(op, &op->options.y);
}

static lowered lower_operand(const moert_op *op, const moert_operand *operand,
                             moert_op_buffer payload, size_t width) {
    if (!is_quantized(operand))
        return (lowered){.type = operand->type, .stride = (size_t)operand->stride};
    const moert_conversion *c = conversion_of(op, payload);
    const moert_dtype type = value_type(op, operand);
    const moert_quantized *quantized =
        c->discrete_quantized != NULL ? c->discrete_quantized : &c->quantized;
    return (lowered){type, width, type != operand_type(op), c->direct ? quantized : NULL};
}

static lowered lower_result(const moert_operand *result, size_t width) {
    if (is_quantized(result))
        return (lowered){.type = MOERT_DTYPE_F32, .stride = width};
    return (lowered){.type = result->type, .stride = (size_t)result->stride};
}

static lowered lower_rows(const moert_op *op, const moert_op_rows *rows, const moert_operand *o,
                          moert_op_buffer payload) {
    return rows->input    ? lower_operand(op, o, payload, rows->width)
           : rows->output ? lower_result(o, rows->width)
                          : (lowered){.stride = 0};
}

/* The buffer that the GEMM gets: the caller's or, if quantized, that of the values; NULL if the
 * backend needs no values. */
static moert_buffer *gemm_buffer(const moert_op *op, const moert_op_buffers *b,
                                 moert_op_buffer which) {
    return conversion_of(op, which) != NULL ? op->values[which] : *moert_op_buffer_at(b, which);
}

/* Stand-ins for the buffers of an execute, which are only tested for NULL. */
static moert_op_buffers stand_ins(const moert_op *op) {
    moert_op_buffers b = MOERT_OP_BUFFERS_INIT;
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        if (op->needs[i].needed)
            *moert_op_buffer_at(&b, i) = (moert_buffer *)(uintptr_t)op;
    return b;
}

/* The GLU of an op; without one, only the form is set. */
static moert_glu lower_glu(const moert_op *op, const moert_op_buffers *b) {
    const moert_op_options *o = &op->options;
    const bool forward = o->kind == MOERT_OP_GLU, backward = o->kind == MOERT_OP_DGLU;
    const lowered d = lower_result(&o->d, backward ? 2 * op->glu_width : op->glu_width);
    moert_glu glu = {.form = o->glu, .prob_stride = 1};
    if (!forward && !backward)
        return glu;
    glu.rows = o->rows;
    glu.width = op->glu_width;
    glu.run = op->run;
    glu.linear_first = o->linear_first;
    glu.prob = b->prob;
    glu.type = d.type;
    glu.ldh = d.stride;
    *(forward ? &glu.h : &glu.dv) = gemm_buffer(op, b, MOERT_OP_BUFFER_d);
    if (forward)
        return glu;
    glu.v = b->c;
    glu.from = o->c.type;
    glu.ldv = (size_t)o->c.stride;
    glu.dprob = b->dprob;
    glu.dbias = b->dbias;
    return glu;
}

/* A dGLU with an offset ignores alpha and beta, as in cuDNN. Global scales multiply the sums of a
 * dGLU. */
static moert_epilogue lower_epilogue(const moert_op *op, const moert_op_buffers *b) {
    const moert_op_options *o = &op->options;
    const bool dglu = o->kind == MOERT_OP_DGLU, scales = !dglu || o->glu.offset == 0.0f;
    const moert_buffer *alpha = op->alphas != NULL && !dglu ? op->alphas : b->alpha;
    return (moert_epilogue){.alpha = scales ? alpha : NULL,
                            .beta = scales ? b->beta : NULL,
                            .add = o->accumulate,
                            .bias_type = o->bias_type,
                            .bias_scale = b->bias_scale,
                            .row_weight = b->row_weight,
                            .prob = moert_op_has_glu(op) ? NULL : b->prob,
                            .acc_scale = dglu ? op->alphas : NULL,
                            .amax = b->amax};
}

moert_gemm moert_op_lower(const moert_op *op, const moert_op_buffers *buffers,
                          moert_gemm_more *more) {
    static const moert_gemm_kind kinds[] = {[MOERT_OP_GEMM_FORWARD] = MOERT_GEMM_FORWARD,
                                            [MOERT_OP_GEMM_DGRAD] = MOERT_GEMM_DGRAD,
                                            [MOERT_OP_GEMM_WGRAD] = MOERT_GEMM_WGRAD,
                                            [MOERT_OP_GLU] = MOERT_GEMM_FORWARD,
                                            [MOERT_OP_DGLU] = MOERT_GEMM_DGRAD};
    const moert_op_options *o = &op->options;
    const moert_op_buffers substitutes = stand_ins(op);
    const moert_op_buffers *b = buffers != NULL ? buffers : &substitutes;
    const bool glu = o->kind == MOERT_OP_GLU, wgrad = o->kind == MOERT_OP_GEMM_WGRAD;
    const lowered x = lower_rows(op, &op->x, &o->x, MOERT_OP_BUFFER_x);
    const lowered y = lower_rows(op, &op->y, &o->y, MOERT_OP_BUFFER_y);
    lowered weight = {.type = o->weight.type};
    if (!wgrad)
        weight = lower_operand(op, &o->weight, MOERT_OP_BUFFER_weight, o->k);
    *more = (moert_gemm_more){
        .epilogue = lower_epilogue(op, b),
        .weights = op->discrete_values != NULL ? op->discrete_values : b->weights,
        .discrete = o->weight.discrete,
        .x_gather = op->x.gathered ? b->gather : NULL,
        .y_gather = op->y.gathered ? b->gather : NULL,
        .divisor = op->x.divisor,
        .x_quantized = x.quantized,
        .weight_quantized = weight.quantized,
        .y_quantized = y.quantized,
        .wide_x = x.wide,
        .wide_weight = weight.wide,
        .wide_y = y.wide,
        .row_multiple = o->row_multiple,
        .workspace = (moert_workspace *)&op->work,
    };
    return (moert_gemm){
        .kind = kinds[o->kind],
        .groups = {b->ends, o->groups, o->rows},
        .n = o->n,
        .k = o->k,
        .type = operand_type(op),
        .result = glu            ? o->c.type
                  : op->x.output ? x.type
                  : wgrad        ? weight.type
                                 : y.type,
        .x = gemm_buffer(op, b, MOERT_OP_BUFFER_x),
        .ldx = x.stride,
        .y = glu ? b->c : gemm_buffer(op, b, MOERT_OP_BUFFER_y),
        .ldy = glu ? (size_t)o->c.stride : y.stride,
        .weight = gemm_buffer(op, b, MOERT_OP_BUFFER_weight),
        .bias = b->bias,
        .gated = glu                        ? MOERT_GATED
                 : o->kind == MOERT_OP_DGLU ? MOERT_GATED_BACKWARD
                                            : MOERT_UNGATED,
        .glu = lower_glu(op, b),
        .more = more,
    };
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
