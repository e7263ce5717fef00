/* The formulas of exact.h. */
#include "support/op/exact.h"
#include "support/op/glu.h"

/* Element i of an optional buffer; 1 if the op has no such buffer. */
static double or_one(const ops_bytes *data, moert_op_buffer which, size_t i) {
    return data->bytes[which] > 0 ? ops_bytes_get(data, which, i) : 1.0;
}

/* Returns the matrix [n,k] of an operand from element `first` on, or its transpose [k,n]. */
static double *values_of(const ops_bytes *data, moert_op_buffer which, size_t first, size_t n,
                         size_t k, bool transposed) {
    double *values = test_alloc(n * k * sizeof *values);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < k; j++)
            values[transposed ? j * n + i : i * k + j] =
                ops_bytes_get(data, which, first + i * k + j);
    return values;
}

/* ---- GEMMs ---- */

/* to[n] += scale * from[n] */
static void add_scaled(double *to, double scale, const double *from, size_t n) {
    for (size_t i = 0; scale != 0.0 && i < n; i++)
        to[i] += scale * from[i];
}

/* Computes acc for the rows [first, end) of group g: the rows of the result, or the gradient of the
 * group's weight. */
static void multiply(const ops_bytes *data, size_t g, size_t first, size_t end, double *acc) {
    const moert_op_options *o = &data->shape.options;
    const size_t n = o->n, k = o->k, rows = end - first;
    const bool x = data->shape.x.input, y = data->shape.y.input;
    double *xs = x ? values_of(data, MOERT_OP_BUFFER_x, first * k, rows, k, false) : NULL;
    double *ys = y ? values_of(data, MOERT_OP_BUFFER_y, first * n, rows, n, false) : NULL;
    double *w =
        /* with x, transposed: [K,N] */
        x && y ? NULL : values_of(data, MOERT_OP_BUFFER_weight, g * n * k, n, k, x);
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

/* ---- epilogues ---- */

/* The absolute error of act where exp overflows in float32. */
static const double lost = 1e-35;

/* The values of a GLU at one element. */
typedef struct gate {
    double act, slope; /* the activation of the gate, and its derivative */
    double magnitude;  /* the sum of the magnitudes of the two addends of `slope` */
    double linear;     /* the linear argument: up, clamped, plus the offset */
} gate;

static gate gate_of(const moert_glu_form *form, double g, double u) {
    const double limit = (double)form->limit, alpha = (double)form->alpha;
    const double low = fmin(g, limit), sigmoid = 1.0 / (1.0 + exp(-alpha * low));
    const double term = alpha * low * (1.0 - sigmoid);
    return (gate){low * sigmoid, sigmoid * (1.0 + term), sigmoid * (1.0 + fabs(term)),
                  fmax(fmin(u, limit), -limit) + (double)form->offset};
}

/* Returns the error that each of the n sums of a row may have. */
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

/* Computes row r of a GEMM's or GLU's result from acc. */
static void finish_row(const ops_bytes *data, ops_exact *e, size_t g, size_t r, double *acc) {
    const moert_op *op = &data->shape;
    const moert_op_options *o = &op->options;
    const bool glu = o->kind == MOERT_OP_GLU;
    const size_t n = glu ? o->n : e->width;
    const double prob = or_one(data, MOERT_OP_BUFFER_prob, r);
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
            const gate at = gate_of(&o->glu, acc[ops_glu_column(op, j, false)],
                                    acc[ops_glu_column(op, j, true)]);
            v = at.act * at.linear;
            off = slack * (fabs(at.slope * at.linear) + fabs(at.act)) + 1e-5 * fabs(v) +
                  lost * fabs(at.linear);
        }
        put(e, r * e->width + j, v * prob, off * fabs(prob));
        raise(e, g, v * prob);
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
    const double slack = slack_of(e, acc, wide / 2);
    for (size_t j = 0; j < wide / 2; j++) {
        const size_t at[] = {ops_glu_column(op, j, false), ops_glu_column(op, j, true)};
        const double c[] = {beta * ops_bytes_get(data, MOERT_OP_BUFFER_c, r * wide + at[0]),
                            beta * ops_bytes_get(data, MOERT_OP_BUFFER_c, r * wide + at[1])};
        const gate s = gate_of(form, c[0], c[1]);
        const double q = alpha * alpha * acc[j];
        const double by[] = {c[0] > limit ? 0.0 : s.linear * s.slope,
                             fabs(c[1]) > limit ? 0.0 : s.act};
        const double off[] = {by[0] == 0.0 ? 0.0 : (1e-5 * s.magnitude + lost) * fabs(s.linear),
                              by[1] == 0.0 ? 0.0 : 1e-5 * fabs(s.act) + lost};
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

ops_exact ops_exact_of(const ops_bytes *plain, double tolerance) {
    const moert_op_options *o = &plain->shape.options;
    const uint32_t *ends = ops_bytes_ends(plain);
    ops_exact e = make(plain, tolerance);
    assert_true(!o->accumulate && o->permute == MOERT_OP_PERMUTE_NONE &&
                (!o->beta || o->kind == MOERT_OP_DGLU));
    const size_t width = plain->shape.x.input ? o->n : o->k; /* columns of acc */
    for (size_t g = 0; g < o->groups; g++) {
        const size_t first = ops_group_start(ends, g), end = ends[g], rows = end - first;
        if (o->kind == MOERT_OP_GEMM_WGRAD) {
            double *sum = e.result + g * o->n * o->k;
            multiply(plain, g, first, end, sum);
            for (size_t i = 0; i < o->n * o->k; i++)
                sum[i] *= or_one(plain, MOERT_OP_BUFFER_alpha, g);
            const double slack = slack_of(&e, sum, o->n * o->k);
            for (size_t i = 0; i < o->n * o->k; i++)
                e.slack[g * o->n * o->k + i] = slack;
            continue;
        }
        double *acc = test_alloc(rows * width * sizeof *acc);
        multiply(plain, g, first, end, acc);
        for (size_t r = 0; r < rows; r++)
            if (o->kind == MOERT_OP_DGLU)
                differentiate_row(plain, &e, g, first + r, acc + r * width);
            else
                finish_row(plain, &e, g, first + r, acc + r * width);
    }
    return e;
}
