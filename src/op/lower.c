/* The GEMM that an op is: what the backend takes of its operands, and the descriptor. */
#include <stdint.h>

#include "op/op.h"

/* An operand as the GEMM has it. */
typedef struct lowered {
    moert_dtype type;
    size_t stride;
    bool wide; /* a factor in float32 beside another of a smaller type */
    const moert_quantized *codes;
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

/* The second factor of a wgrad is y, of others the weight; the first one is the other of x, y. */
static const moert_operand *first_of(const moert_op *op) {
    return op->x.input ? &op->options.x : &op->options.y;
}

static const moert_operand *second_of(const moert_op *op) {
    return op->options.kind == MOERT_OP_GEMM_WGRAD ? &op->options.y : &op->options.weight;
}

/* The type of the operands: that of a plain one, if there is any. */
static moert_dtype operand_type(const moert_op *op) {
    return !is_quantized(first_of(op))    ? first_of(op)->type
           : !is_quantized(second_of(op)) ? second_of(op)->type
                                          : op->backend->decoded;
}

/* Tensor cores take bf16 operands, which hold the values of every format that comes here but
 * FP8_BLOCK: elements of 4 significant bits at most times scales of as many. */
static moert_dtype value_type(const moert_op *op, const moert_operand *factor) {
    const moert_dtype decoded = op->backend->decoded;
    return factor->how.format != MOERT_FORMAT_FP8_BLOCK && decoded == operand_type(op)
               ? decoded
               : MOERT_DTYPE_F32;
}

moert_dtype moert_op_value_type(const moert_op *op, const moert_op_quantized *q) {
    return q->result                              ? MOERT_DTYPE_F32
           : q->payload == MOERT_OP_BUFFER_weight ? value_type(op, &op->options.weight)
           : q->payload == MOERT_OP_BUFFER_x      ? value_type(op, &op->options.x)
                                                  : value_type(op, &op->options.y);
}

static lowered lower_operand(const moert_op *op, const moert_operand *factor,
                             moert_op_buffer payload, size_t width) {
    if (!is_quantized(factor))
        return (lowered){.type = factor->type, .stride = (size_t)factor->stride};
    const moert_conversion *c = conversion_of(op, payload);
    const moert_dtype type = value_type(op, factor);
    const moert_quantized *codes = c->all_codes != NULL ? c->all_codes : &c->codes;
    return (lowered){type, width, type != operand_type(op), c->taken ? codes : NULL};
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

/* What the GEMM has in place of a buffer that is needed: the values of a quantized operand, or the
 * caller's; NULL where codes stand for it. */
static moert_buffer *taken_buffer(const moert_op *op, const moert_op_buffers *b,
                                  moert_op_buffer which) {
    return conversion_of(op, which) != NULL ? op->values[which] : *moert_op_buffer_at(b, which);
}

/* Buffers that are yet to come: only whether there is one counts. */
static moert_op_buffers buffers_to_come(const moert_op *op) {
    moert_op_buffers b = MOERT_OP_BUFFERS_INIT;
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        if (op->needs[i].needed)
            *moert_op_buffer_at(&b, i) = (moert_buffer *)(uintptr_t)op;
    return b;
}

/* The GLU of an op, or nothing but the form. */
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
    *(forward ? &glu.h : &glu.dv) = taken_buffer(op, b, MOERT_OP_BUFFER_d);
    if (forward)
        return glu;
    glu.v = b->c;
    glu.from = o->c.type;
    glu.ldv = (size_t)o->c.stride;
    glu.dprob = b->dprob;
    glu.dbias = b->dbias;
    return glu;
}

/* alpha and beta of a dGLU count without an offset only, as in cuDNN; the global scales multiply
 * its sums. */
static moert_epilogue lower_epilogue(const moert_op *op, const moert_op_buffers *b) {
    const moert_op_options *o = &op->options;
    const bool dglu = o->kind == MOERT_OP_DGLU, scales = !dglu || o->glu.offset == 0.0f;
    const moert_buffer *alpha = op->operands != NULL && !dglu ? op->operands : b->alpha;
    return (moert_epilogue){.alpha = scales ? alpha : NULL,
                            .beta = scales ? b->beta : NULL,
                            .add = o->accumulate,
                            .bias_type = o->bias_type,
                            .bias_scale = b->bias_scale,
                            .row_weight = b->row_weight,
                            .prob = moert_op_has_glu(op) ? NULL : b->prob,
                            .acc_scale = dglu ? op->operands : NULL,
                            .amax = b->amax};
}

moert_gemm moert_op_lower(const moert_op *op, const moert_op_buffers *buffers) {
    static const moert_gemm_kind kinds[] = {[MOERT_OP_GEMM_FORWARD] = MOERT_GEMM_FORWARD,
                                            [MOERT_OP_GEMM_DGRAD] = MOERT_GEMM_DGRAD,
                                            [MOERT_OP_GEMM_WGRAD] = MOERT_GEMM_WGRAD,
                                            [MOERT_OP_GLU] = MOERT_GEMM_FORWARD,
                                            [MOERT_OP_DGLU] = MOERT_GEMM_DGRAD};
    const moert_op_options *o = &op->options;
    const moert_op_buffers to_come = buffers_to_come(op), *b = buffers != NULL ? buffers : &to_come;
    const bool glu = o->kind == MOERT_OP_GLU, wgrad = o->kind == MOERT_OP_GEMM_WGRAD;
    const lowered x = lower_rows(op, &op->x, &o->x, MOERT_OP_BUFFER_x);
    const lowered y = lower_rows(op, &op->y, &o->y, MOERT_OP_BUFFER_y);
    lowered weight = {.type = o->weight.type};
    if (!wgrad)
        weight = lower_operand(op, &o->weight, MOERT_OP_BUFFER_weight, o->k);
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
        .x = taken_buffer(op, b, MOERT_OP_BUFFER_x),
        .ldx = x.stride,
        .y = glu ? b->c : taken_buffer(op, b, MOERT_OP_BUFFER_y),
        .ldy = glu ? (size_t)o->c.stride : y.stride,
        .weight = taken_buffer(op, b, MOERT_OP_BUFFER_weight),
        .weights = op->discrete_values != NULL ? op->discrete_values : b->weights,
        .discrete = o->weight.discrete,
        .bias = b->bias,
        .gated = glu                        ? MOERT_GATED
                 : o->kind == MOERT_OP_DGLU ? MOERT_GATED_BACKWARD
                                            : MOERT_UNGATED,
        .glu = lower_glu(op, b),
        .epilogue = lower_epilogue(op, b),
        .x_gather = op->x.gathered ? b->gather : NULL,
        .y_gather = op->y.gathered ? b->gather : NULL,
        .divisor = op->x.divisor,
        .x_quantized = x.codes,
        .weight_quantized = weight.codes,
        .y_quantized = y.codes,
        .wide_x = x.wide,
        .wide_weight = weight.wide,
        .wide_y = y.wide,
        .row_multiple = o->row_multiple,
        .workspace = (moert_workspace *)&op->work,
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
    const moert_gemm gemm = moert_op_lower(op, NULL);
    /* cppcheck-suppress returnDanglingLifetime ; the words are static */
    return op->backend->supports(op->device, &gemm);
}

const char *moert_op_plan(moert_op *op) {
    for (size_t i = 0; i < op->quantized_count; i++) {
        const moert_op_quantized *q = &op->quantized[i];
        op->conversions[i] = (moert_conversion){
            .as = q,
            .taken = !q->result,
            .codes = {.format = q->how.format,
                      .axis = q->how.axis,
                      .flipped = q->flipped || q->how.transposed,
                      .blocks = q->blocks},
        };
    }
    const char *as_they_are = refusal(op);
    if (as_they_are == NULL)
        return NULL;
    for (size_t i = 0; i < op->quantized_count; i++)
        op->conversions[i].taken = false;
    for (size_t i = 0; i < op->quantized_count; i++) {
        op->conversions[i].taken = !op->quantized[i].result;
        if (op->conversions[i].taken && refusal(op) != NULL)
            op->conversions[i].taken = false;
    }
    return refusal(op) != NULL ? as_they_are : NULL;
}
