/* Checks each field of an op's description and derives the sizes of its buffers. */
#include <stdint.h>
#include <string.h>

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
        return MOERT_FAIL(ERROR_USAGE, "%s: %s is %td; expected 0, or at least the width %zu",
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
    const moert_op_roles is = moert_op_roles_of(o->kind);
    const moert_operand *first = moert_op_operand(o, is.first),
                        *second = moert_op_operand(o, is.second);
    if (first->how.size == 0 && second->how.size == 0 && first->type != second->type)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s: %s.type is %s; expected %s, the type of %s",
                          moert_op_kind_name(o->kind), moert_op_buffer_name(is.second),
                          moert_dtype_name(second->type), moert_dtype_name(first->type),
                          moert_op_buffer_name(is.first));
    return MOERT_OK;
}

/* Checks that each flag set in the options applies to the op's kind. */
static moert_status check_switches(const moert_op *op) {
    const moert_op_options *o = &op->options;
    for (size_t i = 0; i < MOERT_OP_FIELDS; i++) {
        const moert_op_field *f = &moert_op_fields[i];
        if (*moert_op_flag(o, f) && !moert_op_has_field(o->kind, f))
            return moert_op_refuse(MOERT_ERROR_UNSUPPORTED, op, f->name, f->legal, "%s", "true");
    }
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
        return MOERT_FAIL(
            ERROR_USAGE, "%s: %s is %zu; expected a multiple of %zu for runs of %zu columns",
            moert_op_kind_name(o->kind), field, columns, moert_max(2 * interleave, 2), op->run);
    if (!(o->glu.limit > 0.0f))
        return moert_op_refuse(MOERT_ERROR_USAGE, op, "glu.limit", "positive", "%g",
                               (double)o->glu.limit);
    if (moert_activation_name(o->glu.activation) == NULL)
        return moert_op_refuse(MOERT_ERROR_USAGE, op, "glu.activation", "one that has a name", "%d",
                               o->glu.activation);
    if (moert_op_takes_c(op))
        MOERT_TRY(check_rows(op, "c.type", "c.stride", &o->c, columns));
    return check_rows(op, "d.type", "d.stride", &o->d,
                      o->kind == MOERT_OP_GLU ? op->glu_width : columns);
}

/* The size of a buffer: the last letter of its shape is the width, the others are lines. */
static moert_op_need need_of(const moert_op_options *o, bool needed, moert_dtype type,
                             const char *shape) {
    size_t lines = 1;
    for (; shape[0] != '\0' && shape[1] != '\0'; shape++)
        lines *= moert_op_size(o, shape[0]);
    const size_t width = moert_op_size(o, shape[0]);
    return (moert_op_need){needed, type, lines, width, width};
}

/* The buffers except those of quantized operands, which describe_quantized.c adds. */
static bool is_needed(const moert_op *op, moert_op_buffer which) {
    const moert_op_options *o = &op->options;
    const moert_op_field *field = moert_op_field_of(which);
    return field != NULL                     ? *moert_op_flag(o, field)
           : which == MOERT_OP_BUFFER_gather ? o->permute != MOERT_OP_PERMUTE_NONE
           : which == MOERT_OP_BUFFER_weight ? !o->weight.discrete
           : which == MOERT_OP_BUFFER_c
               ? moert_op_takes_c(op)
               : which == MOERT_OP_BUFFER_ends || moert_op_has_role(o->kind, which);
}

static void fill_needs(moert_op *op) {
    const moert_op_options *o = &op->options;
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++) {
        const moert_op_field *field = moert_op_field_of(i);
        const moert_op_matrix *m = moert_op_matrix_of(i);
        const moert_operand *operand = m != NULL ? moert_op_operand(o, i) : NULL;
        const moert_dtype type = operand != NULL                                 ? operand->type
                                 : field != NULL && field->type == MOERT_OP_BIAS ? o->bias_type
                                                                                 : MOERT_DTYPE_F32;
        op->needs[i] = need_of(o, is_needed(op, i), type, moert_op_shape(o, i));
        if (operand != NULL && operand->stride != 0)
            op->needs[i].stride = (size_t)operand->stride;
    }
    op->weights = need_of(o, o->weight.discrete, o->weight.type, "NK");
}

moert_status moert_op_describe(const moert_op_options *options, moert_op *op) {
    moert_op_options *o = &op->options;
    MOERT_TRY(MOERT_OPTIONS_TAKE(moert_op_options, MOERT_OP_OPTIONS_INIT, o, options));
    if ((unsigned)o->kind >= MOERT_OP_KINDS)
        return MOERT_FAIL(ERROR_USAGE, "op: kind is %d; expected a value below %d", (int)o->kind,
                          (int)MOERT_OP_KINDS);
    MOERT_TRY(check_size(op, "groups", o->groups, 0));
    MOERT_TRY(check_size(op, "rows", o->rows, 0));
    MOERT_TRY(check_size(op, "n", o->n, 1));
    MOERT_TRY(check_size(op, "k", o->k, 1));
    const moert_op_roles is = moert_op_roles_of(o->kind);
    op->x = (moert_op_rows){is.first == MOERT_OP_BUFFER_x, is.result == MOERT_OP_BUFFER_x,
                            .width = o->k};
    op->y = (moert_op_rows){is.first == MOERT_OP_BUFFER_y || is.second == MOERT_OP_BUFFER_y,
                            is.result == MOERT_OP_BUFFER_y, .width = o->n};
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
