/* The op descriptions of cases.h. */
#include "support/op/cases.h"

#include "support/test.h"

moert_op_options ops_sized(moert_op_kind kind, size_t groups, size_t rows, size_t n, size_t k) {
    moert_op_options o = MOERT_OP_OPTIONS_INIT;
    o.kind = kind;
    o.groups = groups;
    o.rows = rows;
    o.n = n;
    o.k = k;
    return o;
}

moert_operand ops_scaled(moert_format format, moert_axis axis, size_t layout) {
    moert_operand operand = {.how = MOERT_QUANTIZER_INIT};
    operand.how.format = format;
    operand.how.axis = axis;
    operand.scales =
        format == MOERT_FORMAT_FP8_BLOCK ? MOERT_SCALES_LINEAR : (moert_scale_layout)(layout % 3);
    return operand;
}

moert_operand ops_scaled_by_groups(moert_format format) {
    moert_operand operand = ops_scaled(format, MOERT_AXIS_ROW, MOERT_SCALES_TILED);
    operand.global = operand.how.group_scales = format == MOERT_FORMAT_NVFP4;
    return operand;
}

moert_op_options ops_gemm(moert_op_kind kind, moert_operand operand, size_t groups, size_t rows,
                          size_t n, size_t k) {
    moert_op_options o = ops_sized(kind, groups, rows, n, k);
    const bool forward = kind == MOERT_OP_GEMM_FORWARD || kind == MOERT_OP_GLU;
    operand.how.axis = kind == MOERT_OP_GEMM_WGRAD ? MOERT_AXIS_COLUMN : MOERT_AXIS_ROW;
    *ops_first_operand(&o) = operand;
    operand.how.axis = forward ? MOERT_AXIS_ROW : MOERT_AXIS_COLUMN;
    *ops_second_operand(&o) = operand;
    return o;
}

/* ---- GLU ---- */

const uint32_t ops_glu_ends[OPS_GLU_GROUPS] = {0, 7, 7, 8, 40};

static const moert_glu_form forms[] = {
    MOERT_GLU_SWIGLU, {false, 7.0f, 1.702f, 1.0f, 0}, {false, 5.0f, 1.0f, 0.0f, 0}};
static const moert_dtype types[] = {MOERT_DTYPE_F32, MOERT_DTYPE_BF16, MOERT_DTYPE_F16};

/* The width I, and the number of consecutive columns of gate or up; 0: gate and up are the two
 * halves of a row */
static const struct layout {
    size_t width, run;
} layouts[] = {{64, 32}, {40, 8}, {19, 1}, {33, 0}, {5, 0}, {32, 32}, {8, 8}, {96, 0}};
enum { FORMS = 3, TYPES = 3, LAYOUTS = MOERT_COUNT(layouts) };

moert_op_options ops_glu_case(moert_op_kind kind, size_t i) {
    const struct layout at = layouts[i / FORMS % LAYOUTS];
    const bool glu = kind == MOERT_OP_GLU;
    moert_op_options o =
        ops_sized(kind, OPS_GLU_GROUPS, OPS_GLU_ROWS, glu ? 2 * at.width : 24, glu ? 24 : at.width);
    o.glu = forms[i % FORMS];
    o.interleave = at.run;
    o.linear_first = i >= OPS_GLU_CASES / 2;
    o.x.type = o.y.type = o.weight.type = types[i % TYPES];
    o.c.type = types[(i + 1) % TYPES];
    o.d.type = types[i / TYPES % TYPES];
    o.bias_type = types[i / FORMS % TYPES];
    o.weight.discrete = i % 2 == 1;
    o.prob = i % 4 != 0;
    o.alpha = o.amax = i % 3 != 0;
    if (i % 5 == 0)
        o.c.stride = o.d.stride = (ptrdiff_t)(2 * at.width + 3);
    return o;
}

_Static_assert(OPS_GLU_CASES == 2 * FORMS * LAYOUTS, "every form, order and layout");

void ops_switch_on(moert_op_options *o, unsigned switches) {
    for (size_t i = 0; i < MOERT_OP_FIELDS; i++)
        if ((switches >> i & 1) != 0 && moert_op_has_field(o->kind, &moert_op_fields[i]))
            *moert_op_flag(o, &moert_op_fields[i]) = true;
}

void ops_add_everything(moert_op_options *o) {
    o->alpha = o->prob = o->amax = true;
    o->interleave = o->kind == MOERT_OP_GLU ? 8 : 32;
    o->save_c = o->kind == MOERT_OP_GLU;
    o->dprob = o->dbias = o->beta = o->kind == MOERT_OP_DGLU;
}

const uint32_t ops_usual_ends[OPS_GROUPS] = {0, 33, 33, 70, 131, 131};

moert_op_options ops_usual(moert_op_kind kind) {
    return ops_sized(kind, OPS_GROUPS, OPS_ROWS, 72, 136);
}

const char *ops_title(const moert_op_options *o) {
    moert_op_options copy = *o;
    const moert_operand *first = ops_first_operand(&copy), *result = ops_result(&copy);
    return titled("%s, %s to %s, scales %d, %zu groups, %zu rows, n %zu, k %zu, permute %d%s%s%s%s",
                  moert_op_kind_name(o->kind),
                  first->how.size != 0 ? moert_format_name(first->how.format)
                                       : moert_dtype_name(first->type),
                  result->how.size != 0 ? moert_format_name(result->how.format)
                                        : moert_dtype_name(result->type),
                  (int)first->scales, o->groups, o->rows, o->n, o->k, (int)o->permute,
                  o->weight.discrete ? ", discrete" : "", o->accumulate ? ", accumulated" : "",
                  o->alpha ? ", alpha" : "", o->prob ? ", prob" : "");
}

moert_op *ops_open(const moert_op_options *options) {
    moert_op *op;
    ASSERT_OK(moert_op_create(test_device, options, &op));
    return owned(op, moert_op_destroy);
}

moert_op *ops_open_on(const char *backend, moert_op_options options) {
    options.backend = backend;
    moert_op *op = ops_open(&options);
    assert_string_equal(moert_op_backend_name(op), backend);
    ASSERT_OK(moert_op_compile(op));
    return op;
}

void ops_check_refused(const moert_op_options *o, moert_status status, const char *text) {
    moert_op *op = NULL;
    ASSERT_FAILS(moert_op_create(test_device, o, &op), status, text);
    assert_null(op);
}

void ops_check_fallback(const char *backend, moert_op_options options, const char *text) {
    options.backend = backend;
    ops_check_refused(&options, MOERT_ERROR_UNSUPPORTED, text);
    options.fallback = true;
    assert_string_equal(moert_op_backend_name(ops_open(&options)), "portable");
}
