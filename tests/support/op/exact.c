/* The formulas of exact.h. */
#include "support/op/exact.h"

#include "support/suite.h"

/* Element i of an optional buffer; 1 if the op has no such buffer. */
static double or_one(const ops_bytes *data, moert_op_buffer which, size_t i) {
    return data->bytes[which] > 0 ? ops_bytes_get(data, which, i) : 1.0;
}

size_t ops_row(const ops_bytes *data, const moert_op_rows *rows, size_t r) {
    const size_t slot = rows->gathered ? ops_gather(data)[r] : r;
    return slot < data->shape.options.rows ? slot / rows->divisor : SIZE_MAX;
}

/* ---- GEMMs ---- */

/* Returns rows [first, first + count) of x or y, in the order of the groups. */
static double *rows_of(const ops_bytes *data, moert_op_buffer which, size_t first, size_t count) {
    const moert_op_rows *rows = which == MOERT_OP_BUFFER_x ? &data->shape.x : &data->shape.y;
    const size_t width = rows->width, stride = data->shape.needs[which].stride;
    double *values = test_alloc(count * width * sizeof *values);
    for (size_t r = 0; r < count; r++) {
        const size_t row = ops_row(data, rows, first + r);
        for (size_t j = 0; row != SIZE_MAX && j < width; j++)
            values[r * width + j] = ops_bytes_get(data, which, row * stride + j);
    }
    return values;
}

/* Returns the weight of group g: [K,N] if transposed, otherwise [N,K]. */
static double *weight_of(const ops_bytes *data, size_t g, bool transposed) {
    const size_t n = data->shape.options.n, k = data->shape.options.k;
    double *values = test_alloc(n * k * sizeof *values);
    for (size_t i = 0; i < n * k; i++)
        values[transposed ? i % k * n + i / k : i] =
            ops_bytes_get(data, MOERT_OP_BUFFER_weight, g * n * k + i);
    return values;
}

/* to[n] += scale * from[n] */
static void add_scaled(double *to, double scale, const double *from, size_t n) {
    for (size_t i = 0; scale != 0.0 && i < n; i++)
        to[i] += scale * from[i];
}

/* Computes acc for the rows [first, end) of group g: the rows of the result, or the gradient of the
 * group's weight. */
static void multiply(const ops_bytes *data, size_t g, size_t first, size_t end, double *acc) {
    const size_t n = data->shape.options.n, k = data->shape.options.k, rows = end - first;
    const bool x = data->shape.x.input, y = data->shape.y.input;
    const double *xs = x ? rows_of(data, MOERT_OP_BUFFER_x, first, rows) : NULL;
    const double *ys = y ? rows_of(data, MOERT_OP_BUFFER_y, first, rows) : NULL;
    const double *w = x && y ? NULL : weight_of(data, g, x);
    for (size_t r = 0; r < rows; r++)
        if (x && y)
            for (size_t j = 0; j < n; j++)
                add_scaled(acc + j * k, ys[r * n + j], xs + r * k, k);
        else if (x)
            for (size_t i = 0; i < k; i++)
                add_scaled(acc + r * n, xs[r * k + i], w + i * n, n);
        else
            for (size_t j = 0; j < n; j++)
                add_scaled(acc + r * k, ys[r * n + j], w + j * k, k);
}

static double beta_of(const ops_bytes *data, size_t g) {
    const moert_op_options *o = &data->shape.options;
    return o->beta ? ops_bytes_get(data, MOERT_OP_BUFFER_beta, g) : o->accumulate ? 1.0 : 0.0;
}

/* Adds beta times the old value; if beta is 0, the old value is ignored even if it is NaN. */
static double with_old(const ops_bytes *data, size_t g, double value, moert_op_buffer which,
                       size_t at) {
    const double beta = beta_of(data, g);
    return beta == 0.0 ? value : value + beta * ops_bytes_get(data, which, at);
}

/* ---- epilogues ---- */

/* The absolute error of act where exp overflows in float32. */
static const double lost = 1e-35;

/* The values of a GLU at one element. */
typedef struct gate {
    double act, slope; /* the activation of the gate, and its derivative */
    double magnitude;  /* the sum of the magnitudes of the two addends of `slope` */
    double linear;     /* the linear argument: up, clamped, plus the offset */
} gate;

static double activate(double alpha, double g) {
    return g / (1.0 + exp(-alpha * g));
}

/* Computes the values of a GLU at one element. The slope is a central difference of the activation
 * without the clamp. */
static gate gate_of(const moert_glu_form *form, double g, double u) {
    const double limit = (double)form->limit, alpha = (double)form->alpha, step = 1e-5;
    const double low = fmin(g, limit), sigmoid = 1.0 / (1.0 + exp(-alpha * low));
    return (gate){activate(alpha, low),
                  (activate(alpha, low + step) - activate(alpha, low - step)) / (2.0 * step),
                  sigmoid * (1.0 + fabs(alpha * low * (1.0 - sigmoid))),
                  fmax(fmin(u, limit), -limit) + (double)form->offset};
}

/* The column of the gate or the up on which result j depends. */
static size_t column_of(const moert_op *op, size_t j, bool up) {
    const bool second = up != op->options.linear_first;
    return j / op->run * 2 * op->run + j % op->run + (second ? op->run : 0);
}

/* Returns the largest error that each of the n sums of a row may have. */
static double slack_of(const ops_exact *e, const double *sums, size_t n) {
    double largest = 0.0;
    for (size_t j = 0; j < n; j++)
        largest = fmax(largest, fabs(sums[j]));
    return e->tolerance * largest;
}

static void put(ops_exact *e, size_t at, double value, double slack) {
    e->result[at] = value;
    e->slack[at] = slack;
}

static void raise(ops_exact *e, size_t i, double value) {
    e->amax[i] = fmax(e->amax[i], fabs(value));
}

/* Multiplies a GEMM's result by the weight of its row, after rounding both factors. */
static double with_row_weight(const ops_bytes *data, size_t row, double value) {
    const moert_dtype type = data->shape.needs[MOERT_OP_BUFFER_y].type;
    if (!data->shape.options.row_weight)
        return value;
    return (double)round_to(type, value) *
           (double)round_to(type, ops_bytes_get(data, MOERT_OP_BUFFER_row_weight, row));
}

/* Computes row r of a GEMM's or GLU's result from acc. */
static void finish_row(const ops_bytes *data, ops_exact *e, size_t g, size_t r, double *acc) {
    const moert_op *op = &data->shape;
    const moert_op_options *o = &op->options;
    const bool glu = o->kind == MOERT_OP_GLU;
    const moert_op_buffer result = ops_result_buffer(o->kind);
    const size_t n = glu ? o->n : e->width;
    const size_t row = glu ? r : ops_row(data, op->y.output ? &op->y : &op->x, r);
    const double prob = or_one(data, MOERT_OP_BUFFER_prob, r);
    if (row == SIZE_MAX)
        return;
    for (size_t j = 0; j < n; j++) {
        acc[j] *= or_one(data, MOERT_OP_BUFFER_alpha, g);
        if (o->bias)
            acc[j] += ops_bytes_get(data, MOERT_OP_BUFFER_bias, g * n + j) *
                      or_one(data, MOERT_OP_BUFFER_bias_scale, r);
        if (glu)
            e->c[r * n + j] = acc[j];
    }
    const double slack = slack_of(e, acc, n);
    for (size_t j = 0; j < e->width; j++) {
        double v = acc[j], off = slack;
        if (glu) {
            const gate at =
                gate_of(&o->glu, acc[column_of(op, j, false)], acc[column_of(op, j, true)]);
            v = at.act * at.linear;
            off = slack * (fabs(at.slope * at.linear) + fabs(at.act)) + OPS_GLU_ERROR * fabs(v) +
                  lost * fabs(at.linear);
        }
        v *= prob;
        if (!glu)
            v = with_row_weight(data, row,
                                with_old(data, g, v, result, row * op->needs[result].stride + j));
        put(e, r * e->width + j, v, off * fabs(prob));
        raise(e, g, v);
    }
    for (size_t j = 0; glu && j < n; j++)
        e->c_slack[r * n + j] = slack;
}

/* Computes row r of a dGLU's result from acc, the sums of its GEMM before alpha. */
static void differentiate_row(const ops_bytes *data, ops_exact *e, size_t g, size_t r,
                              const double *acc) {
    const moert_op *op = &data->shape;
    const moert_glu_form *form = &op->options.glu;
    /* as in cuDNN, alpha and beta apply only to a GLU without an offset */
    const bool scaled = form->offset == 0.0f;
    const double alpha = scaled ? or_one(data, MOERT_OP_BUFFER_alpha, g) : 1.0;
    const double beta = scaled ? or_one(data, MOERT_OP_BUFFER_beta, g) : 1.0;
    const double prob = or_one(data, MOERT_OP_BUFFER_prob, r), limit = (double)form->limit;
    const size_t wide = e->width, sums = op->options.groups * wide;
    const size_t row = r * op->needs[MOERT_OP_BUFFER_c].stride;
    const double slack = slack_of(e, acc, wide / 2);
    for (size_t j = 0; j < wide / 2; j++) {
        const size_t at[] = {column_of(op, j, false), column_of(op, j, true)};
        const double c[] = {beta * ops_bytes_get(data, MOERT_OP_BUFFER_c, row + at[0]),
                            beta * ops_bytes_get(data, MOERT_OP_BUFFER_c, row + at[1])};
        const gate s = gate_of(form, c[0], c[1]);
        const double q = alpha * alpha * acc[j];
        const double by[] = {c[0] > limit ? 0.0 : s.linear * s.slope,
                             fabs(c[1]) > limit ? 0.0 : s.act};
        const double off[] = {by[0] == 0.0 ? 0.0
                                           : (OPS_GLU_ERROR * s.magnitude + lost) * fabs(s.linear),
                              by[1] == 0.0 ? 0.0 : OPS_GLU_ERROR * fabs(s.act) + lost};
        const double d[] = {q * prob * by[0], q * prob * by[1]};
        for (size_t i = 0; i < 2; i++) {
            put(e, r * wide + at[i], d[i],
                fabs(q * prob) * off[i] + fabs(alpha * alpha * prob * by[i]) * slack);
            e->dbias[g * wide + at[i]] += d[i];
            e->dbias[sums + g * wide + at[i]] += fabs(d[i]);
            raise(e, 2 * g + i, d[i]);
        }
        e->dprob[r] += q * s.linear * s.act;
        e->dprob[e->lines + r] += fabs(q * s.linear * s.act);
    }
}

static ops_exact make(const ops_bytes *data, double tolerance) {
    const moert_op *op = &data->shape;
    const moert_op_options *o = &op->options;
    const bool wgrad = o->kind == MOERT_OP_GEMM_WGRAD, dglu = o->kind == MOERT_OP_DGLU;
    ops_exact e = {.lines = wgrad ? o->groups * o->n : o->rows, .tolerance = tolerance};
    e.width = dglu ? 2 * o->k : o->kind == MOERT_OP_GLU ? o->n / 2 : op->y.output ? o->n : o->k;
    e.result = test_alloc(e.lines * e.width * sizeof(double));
    e.slack = test_alloc(e.lines * e.width * sizeof(double));
    e.amax = test_alloc(2 * o->groups * sizeof(double));
    for (size_t i = 0; i < 2 * o->groups; i++)
        e.amax[i] = -INFINITY;
    if (o->kind == MOERT_OP_GLU) {
        e.c = test_alloc(e.lines * o->n * sizeof(double));
        e.c_slack = test_alloc(e.lines * o->n * sizeof(double));
    }
    if (dglu) {
        e.dprob = test_alloc(2 * e.lines * sizeof(double));
        e.dbias = test_alloc(2 * o->groups * e.width * sizeof(double));
    }
    return e;
}

/* Finishes the gradient of group g's weight. If the group has no rows, alpha has no effect, and an
 * old -0 stays -0. */
static void finish_weight(const ops_bytes *data, ops_exact *e, size_t g, bool empty) {
    const size_t elements = data->shape.options.n * data->shape.options.k, first = g * elements;
    double *sum = e->result + first;
    for (size_t i = 0; i < elements; i++)
        sum[i] = !empty                    ? sum[i] * or_one(data, MOERT_OP_BUFFER_alpha, g)
                 : beta_of(data, g) == 0.0 ? 0.0
                                           : -0.0;
    const double slack = slack_of(e, sum, elements);
    for (size_t i = 0; i < elements; i++)
        put(e, first + i, with_old(data, g, sum[i], MOERT_OP_BUFFER_weight, first + i), slack);
}

ops_exact ops_exact_of(const ops_bytes *data, double tolerance) {
    const moert_op_options *o = &data->shape.options;
    const uint32_t *ends = ops_bytes_ends(data);
    ops_exact e = make(data, tolerance);
    const size_t width = data->shape.x.input ? o->n : o->k; /* columns of acc */
    for (size_t g = 0; g < o->groups; g++) {
        const size_t before = owned_count();
        const size_t first = ops_group_start(ends, g), end = ends[g], rows = end - first;
        const bool wgrad = o->kind == MOERT_OP_GEMM_WGRAD;
        double *acc = wgrad ? e.result + g * o->n * o->k : test_alloc(rows * width * sizeof *acc);
        multiply(data, g, first, end, acc);
        if (wgrad)
            finish_weight(data, &e, g, rows == 0);
        for (size_t r = 0; !wgrad && r < rows; r++)
            if (o->kind == MOERT_OP_DGLU)
                differentiate_row(data, &e, g, first + r, acc + r * width);
            else
                finish_row(data, &e, g, first + r, acc + r * width);
        release_since(before);
    }
    return e;
}

/* ---- single elements ---- */

bool ops_draw(const ops_bytes *data, size_t number, ops_element *e) {
    const moert_op *op = &data->shape;
    const moert_op_options *o = &op->options;
    const bool wgrad = o->kind == MOERT_OP_GEMM_WGRAD, forward = o->kind == MOERT_OP_GEMM_FORWARD;
    const uint32_t *ends = ops_bytes_ends(data);
    const size_t g = number % o->groups, first = ops_group_start(ends, g), rows = ends[g] - first;
    const size_t lines = wgrad ? o->n : rows, columns = forward ? o->n : o->k;
    if (lines == 0)
        return false;
    *e = (ops_element){.g = g,
                       .line = suite_bits(1, number) % lines,
                       .j = suite_bits(2, number) % columns,
                       .terms = wgrad     ? rows
                                : forward ? o->k
                                          : o->n};
    const size_t row =
        wgrad ? g * o->n + e->line : ops_row(data, forward ? &op->y : &op->x, first + e->line);
    e->at = row * columns + e->j;
    return row != SIZE_MAX;
}

/* Element (r, j) of x or y, row r in the order of the groups. */
static float at(const ops_bytes *data, moert_op_buffer which, size_t r, size_t j) {
    const moert_op_rows *rows = which == MOERT_OP_BUFFER_x ? &data->shape.x : &data->shape.y;
    const size_t row = ops_row(data, rows, r), stride = data->shape.needs[which].stride;
    return row == SIZE_MAX ? 0.0f : (float)ops_bytes_get(data, which, row * stride + j);
}

ops_factors ops_factors_of(const ops_bytes *data, const ops_element *e, size_t t) {
    const moert_op_options *o = &data->shape.options;
    const size_t first = ops_group_start(ops_bytes_ends(data), e->g), row = first + e->line;
    const moert_op_buffer x = MOERT_OP_BUFFER_x, y = MOERT_OP_BUFFER_y;
    if (o->kind == MOERT_OP_GEMM_WGRAD)
        return (ops_factors){at(data, y, first + t, e->line), at(data, x, first + t, e->j)};
    const bool forward = o->kind == MOERT_OP_GEMM_FORWARD;
    const size_t in_weight = forward ? e->j * o->k + t : t * o->k + e->j;
    return (ops_factors){
        at(data, forward ? x : y, row, t),
        (float)ops_bytes_get(data, MOERT_OP_BUFFER_weight, e->g * o->n * o->k + in_weight)};
}
