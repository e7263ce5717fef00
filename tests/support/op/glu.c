/* The cases of glu.h. */
#include "support/op/glu.h"
#include "base/memory.h"

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

size_t ops_glu_column(const moert_op *op, size_t j, bool up) {
    const bool second = up != op->options.linear_first;
    return j / op->run * 2 * op->run + j % op->run + (second ? op->run : 0);
}

double ops_glu_value(moert_glu_form form, double gate, double up) {
    const double limit = (double)form.limit, g = fmin(gate, limit);
    return g / (1.0 + exp(-(double)form.alpha * g)) *
           (fmax(fmin(up, limit), -limit) + (double)form.offset);
}

size_t ops_glu_group(size_t r) {
    size_t g = 0;
    while (ops_glu_ends[g] <= r)
        g++;
    return g;
}

double ops_glu_operand(const ops_data *data, moert_op_buffer which, size_t i) {
    return data->shape.needs[which].needed ? (double)data->at[which][i] : 1.0;
}

void assert_rounded(const char *title, moert_dtype type, double got, double want, double scale) {
    const double ulp = type == MOERT_DTYPE_BF16 ? 0x1p-8 : type == MOERT_DTYPE_F16 ? 0x1p-11 : 0.0;
    if (!(fabs(got - want) <= ulp * fabs(want) + 4e-6 * (fabs(want) + scale)))
        fail_msg("%s: %.9g, not %.9g", title, got, want);
}

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

moert_op_options ops_glu_one(moert_op_kind kind, moert_glu_form form) {
    moert_op_options o = ops_sized(kind, 1, 1, kind == MOERT_OP_GLU ? 2 : 1, 1);
    o.glu = form;
    o.prob = true;
    return o;
}

_Static_assert(OPS_GLU_CASES == 2 * FORMS * LAYOUTS, "every form, order and layout");
