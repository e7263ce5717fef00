/* Checks each field of an op's description and derives the sizes of its buffers. */
#include <stdint.h>

#include "base/memory.h"
#include "base/options.h"
#include "op/op.h"

static const moert_status usage = MOERT_ERROR_USAGE, unsupported = MOERT_ERROR_UNSUPPORTED;

static moert_status check_size(const moert_op *op, const char *field, size_t value, size_t least) {
    return MOERT_OP_CHECK_RULES(op, NULL, {value < least, usage, field, "at least 1", NULL, value},
                                {value > INT32_MAX, unsupported, field, "below 2^31", NULL, value});
}

/* Checks the type of a matrix or a bias, which must have at least `bits` bits. */
static moert_status check_type(const moert_op *op, const char *field, moert_dtype type,
                               size_t bits) {
    const char *name = moert_dtype_name(type);
    const char *const legal =
        bits > 8 ? "f32, f16 or bf16" : "f32, f16, bf16, e4m3 or e5m2, or quantized";
    if (name == NULL)
        return moert_op_refuse(MOERT_ERROR_USAGE, op, field, legal, "dtype %d", (int)type);
    if (moert_dtype_bits(type) < bits)
        return moert_op_refuse(MOERT_ERROR_UNSUPPORTED, op, field, legal, "%s", name);
    return MOERT_OK;
}

/* Checks a row matrix and fills in its stride. */
static moert_status check_rows(const moert_op *op, const char *type_field, const char *stride_field,
                               moert_operand *rows, size_t width) {
    if (rows->discrete)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "%s: %.1s.discrete is true; only weight may be discrete",
                          moert_op_kind_name(op->options.kind), type_field);
    if (rows->how.size != 0) /* describe_quantized.c checks quantized operands */
        return MOERT_OK;
    MOERT_TRY(check_type(op, type_field, rows->type, 8));
    if (rows->stride == 0)
        rows->stride = (ptrdiff_t)width;
    if (rows->stride < 0 || (size_t)rows->stride < width)
        return MOERT_FAIL(ERROR_USAGE, "%s: %s is %td; 0, or at least the width %zu",
                          moert_op_kind_name(op->options.kind), stride_field, rows->stride, width);
    if (rows->stride > INT32_MAX)
        return moert_op_refuse(MOERT_ERROR_UNSUPPORTED, op, stride_field, "below 2^31", "%td",
                               rows->stride);
    return MOERT_OK;
}

static moert_status check_weight(moert_op *op) {
    enum { MOST_DISCRETE = 65536 }; /* each discrete weight may need a buffer of the workspace */
    moert_operand *weight = &op->options.weight;
    if (weight->discrete && op->options.groups > MOST_DISCRETE)
        return moert_op_refuse(MOERT_ERROR_UNSUPPORTED, op, "groups",
                               "at most 65536 with discrete weights", "%zu", op->options.groups);
    if (weight->how.size != 0)
        return MOERT_OK;
    MOERT_TRY(check_type(op, "weight.type", weight->type, 8));
    if (weight->stride != 0 && weight->stride != (ptrdiff_t)op->options.k)
        return moert_op_refuse(MOERT_ERROR_UNSUPPORTED, op, "weight.stride", "0 or k", "%td",
                               weight->stride);
    return MOERT_OK;
}

/* Two plain operands must have the same type. */
static moert_status check_pair(const moert_op *op) {
    const moert_op_options *o = &op->options;
    const bool wgrad = o->kind == MOERT_OP_GEMM_WGRAD;
    const moert_operand *second = wgrad ? &o->y : &o->weight, *first = op->x.input ? &o->x : &o->y;
    if (first->how.size == 0 && second->how.size == 0 && first->type != second->type)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s: %s.type is %s; %s, the type of %s",
                          moert_op_kind_name(o->kind), wgrad ? "y" : "weight",
                          moert_dtype_name(second->type), moert_dtype_name(first->type),
                          op->x.input ? "x" : "y");
    return MOERT_OK;
}

/* Switches that only some kinds have. */
static moert_status check_switches(const moert_op *op) {
    const moert_op_options *o = &op->options;
    const unsigned forward = 1u << MOERT_OP_GEMM_FORWARD, glu = 1u << MOERT_OP_GLU;
    const unsigned dglu = 1u << MOERT_OP_DGLU, wgrad = 1u << MOERT_OP_GEMM_WGRAD;
    const unsigned gemm = forward | 1u << MOERT_OP_GEMM_DGRAD | wgrad, rows = ~wgrad;
    const struct {
        const char *field, *legal;
        bool set;
        unsigned kinds;
    } switches[] = {
        {"beta", "false, except in a GEMM and dglu", o->beta, gemm | dglu},
        {"accumulate", "false, except in a GEMM", o->accumulate, gemm},
        {"bias", "false, except in gemm_forward and glu", o->bias, forward | glu},
        {"bias_scale", "false, except in gemm_forward", o->bias_scale, forward},
        {"row_weight", "false, except in gemm_forward", o->row_weight, forward},
        {"save_c", "false, except in glu", o->save_c, glu},
        {"prob", "false in gemm_wgrad", o->prob, rows},
        {"amax", "false in gemm_wgrad", o->amax, rows},
        {"dprob", "false, except in dglu", o->dprob, dglu},
        {"dbias", "false, except in dglu", o->dbias, dglu},
        {"linear_first", "false, except in glu and dglu", o->linear_first, glu | dglu},
    };
    for (size_t i = 0; i < MOERT_COUNT(switches); i++)
        if (switches[i].set && (switches[i].kinds >> o->kind & 1) == 0)
            return moert_op_refuse(MOERT_ERROR_UNSUPPORTED, op, switches[i].field,
                                   switches[i].legal, "%s", "true");
    const bool glus = moert_op_has_glu(op);
    return MOERT_OP_CHECK_RULES(
        op, NULL, {o->beta && o->accumulate, usage, "accumulate", "false with beta", "true", 0},
        {o->prob && !glus && (o->beta || o->accumulate), usage, "prob",
         "false with beta or accumulate", "true", 0},
        {o->prob && o->bias && !glus, usage, "prob",
         "false with bias; bias_scale is cuDNN's prob there", "true", 0},
        {o->bias_scale && !o->bias, usage, "bias_scale", "false without bias", "true", 0});
}

static moert_status check_permute(moert_op *op) {
    const moert_op_options *o = &op->options;
    const bool x = o->permute == MOERT_OP_PERMUTE_X, y = o->permute == MOERT_OP_PERMUTE_Y;
    if ((unsigned)o->permute > MOERT_OP_PERMUTE_Y)
        return moert_op_refuse(MOERT_ERROR_USAGE, op, "permute", "none (0), x (1) or y (2)", "%d",
                               (int)o->permute);
    MOERT_TRY(MOERT_OP_CHECK_RULES(
        op, NULL, {x && o->kind == MOERT_OP_DGLU, unsupported, "permute", "none or y", "x", 0},
        {y && o->kind == MOERT_OP_GLU, unsupported, "permute", "none or x", "y", 0},
        {o->row_weight && !y, usage, "row_weight", "false without permute y", "true", 0}));
    if (o->permute != MOERT_OP_PERMUTE_NONE)
        MOERT_TRY(check_size(op, "topk", o->topk, 1));
    op->x.gathered = x;
    op->y.gathered = y;
    op->x.divisor = x && op->x.input ? o->topk : 1;
    op->y.divisor = 1;
    return MOERT_OK;
}

static moert_status check_glu(moert_op *op) {
    moert_op_options *o = &op->options;
    const size_t columns = o->kind == MOERT_OP_GLU ? o->n : 2 * o->k;
    const size_t interleave = o->interleave == 0 && o->glu.interleaved ? 1 : o->interleave;
    const char *const field = o->kind == MOERT_OP_GLU ? "n" : "2k";
    op->glu_width = columns / 2;
    op->run = interleave > 0 ? interleave : op->glu_width;
    MOERT_TRY(MOERT_OP_CHECK_RULES(op, NULL,
                                   {interleave != 0 && interleave != 1 && interleave != 8 &&
                                        interleave != 32 && interleave != op->glu_width,
                                    unsupported, "interleave", "0, 1, 8, 32 or half the columns",
                                    NULL, interleave},
                                   {o->glu.interleaved && interleave != 1, usage, "interleave",
                                    "0 or 1 with glu.interleaved", NULL, interleave}));
    if (columns % 2 != 0 || columns % (2 * op->run) != 0)
        return MOERT_FAIL(ERROR_USAGE, "%s: %s is %zu; a multiple of %zu for runs of %zu columns",
                          moert_op_kind_name(o->kind), field, columns, moert_max(2 * interleave, 2),
                          op->run);
    if (!(o->glu.limit > 0.0f))
        return moert_op_refuse(MOERT_ERROR_USAGE, op, "glu.limit", "positive", "%g",
                               (double)o->glu.limit);
    if (moert_op_takes_c(op))
        MOERT_TRY(check_rows(op, "c.type", "c.stride", &o->c, columns));
    return check_rows(op, "d.type", "d.stride", &o->d,
                      o->kind == MOERT_OP_GLU ? op->glu_width : columns);
}

static void fill_needs(moert_op *op) {
    const moert_op_options *o = &op->options;
    const size_t g = o->groups, m = o->rows, wide = 2 * op->glu_width;
    const moert_dtype f32 = MOERT_DTYPE_F32;
    const bool dglu = o->kind == MOERT_OP_DGLU, has_glu = moert_op_has_glu(op);
    const size_t amaxes = dglu ? 2 : 1, d_width = dglu ? wide : op->glu_width;
    const bool gather = o->permute != MOERT_OP_PERMUTE_NONE;
    const moert_op_need needs[MOERT_OP_BUFFERS] = {
        [MOERT_OP_BUFFER_ends] = {true, f32, 1, g, g},
        [MOERT_OP_BUFFER_x] = {op->x.input || op->x.output, o->x.type,
                               moert_ceil_div(m, op->x.divisor), o->k, (size_t)o->x.stride},
        [MOERT_OP_BUFFER_weight] = {!o->weight.discrete, o->weight.type, g * o->n, o->k, o->k},
        [MOERT_OP_BUFFER_y] = {op->y.input || op->y.output, o->y.type, m, o->n,
                               (size_t)o->y.stride},
        [MOERT_OP_BUFFER_c] = {moert_op_takes_c(op), o->c.type, m, wide, (size_t)o->c.stride},
        [MOERT_OP_BUFFER_d] = {has_glu, o->d.type, m, d_width, (size_t)o->d.stride},
        [MOERT_OP_BUFFER_alpha] = {o->alpha, f32, 1, g, g},
        [MOERT_OP_BUFFER_beta] = {o->beta, f32, 1, g, g},
        [MOERT_OP_BUFFER_bias] = {o->bias, o->bias_type, g, o->n, o->n},
        [MOERT_OP_BUFFER_bias_scale] = {o->bias_scale, f32, 1, m, m},
        [MOERT_OP_BUFFER_gather] = {gather, f32, 1, m, m},
        [MOERT_OP_BUFFER_row_weight] = {o->row_weight, f32, 1, m, m},
        [MOERT_OP_BUFFER_prob] = {o->prob, f32, 1, m, m},
        [MOERT_OP_BUFFER_amax] = {o->amax, f32, g, amaxes, amaxes},
        [MOERT_OP_BUFFER_dprob] = {o->dprob, f32, 1, m, m},
        [MOERT_OP_BUFFER_dbias] = {o->dbias, o->bias_type, g, wide, wide},
    };
    for (size_t i = 0; i < MOERT_OP_BUFFERS; i++)
        op->needs[i] = needs[i];
    op->weights = (moert_op_need){o->weight.discrete, o->weight.type, o->n, o->k, o->k};
}

moert_status moert_op_describe(const moert_op_options *options, moert_op *op) {
    moert_op_options *o = &op->options;
    MOERT_TRY(MOERT_OPTIONS_TAKE(moert_op_options, MOERT_OP_OPTIONS_INIT, o, options));
    if ((unsigned)o->kind >= MOERT_OP_KINDS)
        return MOERT_FAIL(ERROR_USAGE, "op: kind is %d; below %d", (int)o->kind,
                          (int)MOERT_OP_KINDS);
    MOERT_TRY(check_size(op, "groups", o->groups, 0));
    MOERT_TRY(check_size(op, "rows", o->rows, 0));
    MOERT_TRY(check_size(op, "n", o->n, 1));
    MOERT_TRY(check_size(op, "k", o->k, 1));
    const moert_op_kind kind = o->kind;
    const bool forward = kind == MOERT_OP_GEMM_FORWARD, dgrad = kind == MOERT_OP_GEMM_DGRAD;
    const bool wgrad = kind == MOERT_OP_GEMM_WGRAD;
    op->x = (moert_op_rows){forward || wgrad || kind == MOERT_OP_GLU, dgrad, .width = o->k};
    op->y = (moert_op_rows){dgrad || wgrad || kind == MOERT_OP_DGLU, forward, .width = o->n};
    if (op->x.input || op->x.output)
        MOERT_TRY(check_rows(op, "x.type", "x.stride", &o->x, o->k));
    if (op->y.input || op->y.output)
        MOERT_TRY(check_rows(op, "y.type", "y.stride", &o->y, o->n));
    MOERT_TRY(check_weight(op));
    MOERT_TRY(check_pair(op));
    MOERT_TRY(check_switches(op));
    MOERT_TRY(check_permute(op));
    if (o->bias || o->dbias)
        MOERT_TRY(check_type(op, "bias_type", o->bias_type, 16));
    if (moert_op_has_glu(op))
        MOERT_TRY(check_glu(op));
    MOERT_TRY(moert_op_check_quantized(op));
    fill_needs(op);
    return moert_op_shape_quantized(op);
}
