// run: np=1 sanitize=1
/* GLU and dGLU ops: the worked examples, float64 with finite differences for every form, order and
 * interleaving, and what must be exact. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/ops_run.h"

static const char *const backends[] = {"reference", "portable"};
static const moert_glu_form forms[] = {
    MOERT_GLU_SWIGLU, {false, 7.0f, 1.702f, 1.0f}, {false, 5.0f, 1.0f, 0.0f}};
static const moert_number types[] = {MOERT_NUMBER_F32, MOERT_NUMBER_BF16, MOERT_NUMBER_F16};

/* I, and the run of columns of gate or up; 0 = halves */
static const struct layout {
    size_t width, run;
} layouts[] = {{64, 32}, {40, 8}, {19, 1}, {33, 0}, {5, 0}, {32, 32}, {8, 8}, {96, 0}};
enum {
    FORMS = 3,
    TYPES = 3,
    LAYOUTS = sizeof layouts / sizeof layouts[0],
    CASES = 2 * FORMS * LAYOUTS
};

/* Groups: empty, one row, many; rows past the last end. */
enum { GROUPS = 5, ROWS = 44 };
static const uint32_t ends[GROUPS] = {0, 7, 7, 8, 40};

/* Columns of gate and up of result j. */
static size_t column(const ops_data *data, size_t j, bool up) {
    const size_t run = data->shape.run;
    const bool second = up != data->shape.options.linear_first;
    return j / run * 2 * run + j % run + (second ? run : 0);
}

static double glu(moert_glu_form form, double gate, double up) {
    const double limit = (double)form.limit, g = fmin(gate, limit);
    return g / (1.0 + exp(-(double)form.alpha * g)) *
           (fmax(fmin(up, limit), -limit) + (double)form.offset);
}

static size_t group_of(size_t r) {
    size_t g = 0;
    while (ends[g] <= r)
        g++;
    return g;
}

static double of(const ops_data *data, moert_op_buffer which, size_t i) {
    return data->shape.needs[which].needed ? (double)data->at[which][i] : 1.0;
}

/* Within the rounding of the type, and float32's on the way. */
static void assert_rounded(const char *title, moert_number type, double got, double want,
                           double scale) {
    const double ulp = type == MOERT_NUMBER_BF16  ? 0x1p-8
                       : type == MOERT_NUMBER_F16 ? 0x1p-11
                                                  : 0.0;
    if (!(fabs(got - want) <= ulp * fabs(want) + 4e-6 * (fabs(want) + scale)))
        fail_msg("%s: %.9g, not %.9g", title, got, want);
}

/* Case i: every form, order and layout; types and switches go along. */
static moert_op_options describe(moert_op_kind kind, size_t i) {
    moert_op_options o = MOERT_OP_OPTIONS_INIT;
    const struct layout at = layouts[i / FORMS % LAYOUTS];
    o.kind = kind;
    o.groups = GROUPS;
    o.rows = ROWS;
    o.n = kind == MOERT_OP_GLU ? 2 * at.width : 24;
    o.k = kind == MOERT_OP_GLU ? 24 : at.width;
    o.glu = forms[i % FORMS];
    o.interleave = at.run;
    o.linear_first = i >= CASES / 2;
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

/* ---- forward ---- */

/* Element of row r and column n before rounding, exact. */
static double pre_activation(const ops_data *data, size_t r, size_t n) {
    const moert_op_options *o = &data->shape.options;
    const size_t g = group_of(r);
    double acc = 0.0;
    for (size_t i = 0; i < o->k; i++)
        acc += (double)data->at[MOERT_OP_BUFFER_x][r * (size_t)o->x.stride + i] *
               (double)ops_weight(data)[(g * o->n + n) * o->k + i];
    return of(data, MOERT_OP_BUFFER_alpha, g) * acc +
           (o->bias ? (double)data->at[MOERT_OP_BUFFER_bias][g * o->n + n] : 0.0);
}

static void check_forward_row(const char *title, const ops_data *got, size_t r, double *peak) {
    const moert_op_options *o = &got->shape.options;
    for (size_t n = 0; o->save_c && n < o->n; n++)
        if (got->at[MOERT_OP_BUFFER_c][r * (size_t)o->c.stride + n] !=
            ops_round(o->c.type, pre_activation(got, r, n)))
            fail_msg("%s: c[%zu,%zu]", title, r, n);
    for (size_t j = 0; j < got->shape.glu_width; j++) {
        const double want = of(got, MOERT_OP_BUFFER_prob, r) *
                            glu(o->glu, pre_activation(got, r, column(got, j, false)),
                                pre_activation(got, r, column(got, j, true)));
        const double d = (double)got->at[MOERT_OP_BUFFER_d][r * (size_t)o->d.stride + j];
        assert_rounded(title, o->d.type, d, want, 0.01);
        peak[group_of(r)] = fmax(peak[group_of(r)], fabs(want));
    }
}

static void test_forward_is_the_formula_on_unrounded_values(void **state) {
    (void)state;
    for (size_t i = 0; i < CASES * 2; i++) {
        char title[64];
        moert_op_options o = describe(MOERT_OP_GLU, i / 2);
        o.bias = i % 7 != 0;
        o.save_c = i % 6 > 1;
        ops_data got = ops_make(&o, ends, true), before = ops_copy(&got);
        double peak[GROUPS] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY};
        ops_execute(backends[i % 2], &got, 1);
        snprintf(title, sizeof title, "case %zu, %s", i / 2, backends[i % 2]);
        for (size_t r = 0; r < ends[GROUPS - 1]; r++)
            check_forward_row(title, &got, r, peak);
        for (size_t g = 0; o.amax && g < GROUPS; g++)
            if (isinf(peak[g])) /* without rows: as it was */
                assert_true((double)got.at[MOERT_OP_BUFFER_amax][g] == peak[g]);
            else
                assert_rounded(title, MOERT_NUMBER_F32, (double)got.at[MOERT_OP_BUFFER_amax][g],
                               peak[g], 0.0);
        const size_t past = ends[GROUPS - 1] * (size_t)got.shape.options.d.stride;
        assert_same_bits("rows past the last end", got.at[MOERT_OP_BUFFER_d] + past,
                         before.at[MOERT_OP_BUFFER_d] + past, got.count[MOERT_OP_BUFFER_d] - past);
        ops_free(&got);
        ops_free(&before);
    }
}

static void test_prob_0_gives_zeros_and_leaves_c(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        moert_op_options o = describe(MOERT_OP_GLU, 1);
        o.prob = o.save_c = true;
        ops_data got = ops_make(&o, ends, true);
        size_t others = 0;
        ops_execute(backends[i], &got, 1);
        for (size_t r = 0; r < ends[GROUPS - 1]; r++) {
            for (size_t j = 0; j < got.shape.glu_width; j++)
                if (got.at[MOERT_OP_BUFFER_prob][r] == 0.0f)
                    assert_true(got.at[MOERT_OP_BUFFER_d][r * got.shape.glu_width + j] == 0.0f);
            for (size_t n = 0; n < o.n; n++)
                others += got.at[MOERT_OP_BUFFER_c][r * o.n + n] != 0.0f;
        }
        assert_true(others > 0);
        ops_free(&got);
    }
}

/* ---- backward ---- */

/* The upstream gradient of row r, result j, before prob. */
static double upstream(const ops_data *data, size_t r, size_t j) {
    const moert_op_options *o = &data->shape.options;
    const size_t g = group_of(r);
    const double alpha = o->glu.offset == 0.0f ? of(data, MOERT_OP_BUFFER_alpha, g) : 1.0;
    double acc = 0.0;
    for (size_t n = 0; n < o->n; n++)
        acc += (double)data->at[MOERT_OP_BUFFER_y][r * o->n + n] *
               (double)ops_weight(data)[(g * o->n + n) * o->k + j];
    return alpha * alpha * acc;
}

/* Row r against central differences; adds to the group's sums and peaks. */
static void check_backward_row(const char *title, const ops_data *got, size_t r, double *dbias,
                               double *peak) {
    const moert_op_options *o = &got->shape.options;
    const size_t g = group_of(r), width = got->shape.glu_width;
    const double beta = o->glu.offset == 0.0f ? of(got, MOERT_OP_BUFFER_beta, g) : 1.0;
    const double prob = of(got, MOERT_OP_BUFFER_prob, r), step = 1e-5;
    double dprob = 0.0, sum = 0.0;
    for (size_t j = 0; j < width; j++) {
        const size_t at[] = {column(got, j, false), column(got, j, true)};
        const float *c = got->at[MOERT_OP_BUFFER_c] + r * (size_t)o->c.stride;
        const double gate = beta * (double)c[at[0]], up = beta * (double)c[at[1]];
        const double q = upstream(got, r, j);
        const double want[] = {
            q * prob * (glu(o->glu, gate + step, up) - glu(o->glu, gate - step, up)) / (2 * step),
            q * prob * (glu(o->glu, gate, up + step) - glu(o->glu, gate, up - step)) / (2 * step)};
        for (size_t s = 0; s < 2; s++) {
            const double d = (double)got->at[MOERT_OP_BUFFER_d][r * (size_t)o->d.stride + at[s]];
            assert_rounded(title, o->d.type, d, want[s], fabs(q * prob) * 0.1);
            dbias[g * 2 * width + at[s]] += want[s];
            peak[2 * g + s] = fmax(peak[2 * g + s], fabs(want[s]));
        }
        dprob += q * glu(o->glu, gate, up);
        sum += fabs(q * glu(o->glu, gate, up));
    }
    if (o->dprob)
        assert_rounded(title, MOERT_NUMBER_F32, (double)got->at[MOERT_OP_BUFFER_dprob][r],
                       dprob + 3.0, sum + 3.0);
}

static void check_sums(const char *title, const ops_data *got, const double *dbias,
                       const double *peak) {
    const moert_op_options *o = &got->shape.options;
    const size_t wide = 2 * got->shape.glu_width;
    for (size_t i = 0; o->dbias && i < GROUPS * wide; i++)
        assert_rounded(title, o->bias_type, (double)got->at[MOERT_OP_BUFFER_dbias][i],
                       dbias[i] - 2.0, 500.0);
    for (size_t i = 0; o->amax && i < 2 * GROUPS; i++)
        if (i / 2 == 0 || i / 2 == 2)
            assert_true(isinf(got->at[MOERT_OP_BUFFER_amax][i])); /* no rows */
        else
            assert_rounded(title, MOERT_NUMBER_F32, (double)got->at[MOERT_OP_BUFFER_amax][i],
                           peak[i], 10.0);
}

static void test_backward_is_the_derivative_and_adds_to_its_sums(void **state) {
    (void)state;
    for (size_t i = 0; i < CASES * 2; i++) {
        char title[64];
        moert_op_options o = describe(MOERT_OP_DGLU, i / 2);
        o.beta = i % 3 == 0;
        o.dprob = i % 4 != 3;
        o.dbias = i % 8 < 5;
        ops_data got = ops_make(&o, ends, true);
        double *dbias = test_alloc(GROUPS * 2 * o.k * sizeof *dbias), peak[2 * GROUPS] = {0};
        for (size_t k = 0; k < got.count[MOERT_OP_BUFFER_c]; k++)
            got.at[MOERT_OP_BUFFER_c][k] *= 4.5f; /* past the limits, never on them */
        for (size_t k = 0; k < got.count[MOERT_OP_BUFFER_dprob]; k++)
            got.at[MOERT_OP_BUFFER_dprob][k] = 3.0f;
        for (size_t k = 0; k < got.count[MOERT_OP_BUFFER_dbias]; k++)
            got.at[MOERT_OP_BUFFER_dbias][k] = -2.0f;
        ops_execute(backends[i % 2], &got, 1);
        snprintf(title, sizeof title, "case %zu, %s", i / 2, backends[i % 2]);
        for (size_t r = 0; r < ends[GROUPS - 1]; r++)
            check_backward_row(title, &got, r, dbias, peak);
        check_sums(title, &got, dbias, peak);
        free(dbias);
        ops_free(&got);
    }
}

/* ---- rows in another order ---- */

/* Replaces the gathered rows of an input by rows that lie in the groups' order. */
static ops_data gathered_before(const ops_data *data, moert_op_buffer which) {
    moert_op_options o = data->shape.options;
    const size_t width = data->shape.needs[which].stride,
                 topk = which == MOERT_OP_BUFFER_x ? o.topk : 1;
    o.permute = MOERT_OP_PERMUTE_NONE;
    ops_data plain = ops_make(&o, ends, true);
    for (size_t r = 0; r < ends[GROUPS - 1]; r++)
        memcpy(plain.at[which] + r * width, data->at[which] + ops_gather(data)[r] / topk * width,
               width * sizeof(float));
    return plain;
}

static void test_permuted_inputs_are_read_where_they_lie(void **state) {
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        const bool forward = i < 2;
        moert_op_options o = describe(forward ? MOERT_OP_GLU : MOERT_OP_DGLU, 1);
        o.permute = forward ? MOERT_OP_PERMUTE_X : MOERT_OP_PERMUTE_Y;
        o.topk = 4;
        ops_data got = ops_make(&o, ends, true);
        ops_data want = gathered_before(&got, forward ? MOERT_OP_BUFFER_x : MOERT_OP_BUFFER_y);
        ops_execute(backends[i % 2], &got, 1);
        ops_execute(backends[i % 2], &want, 1);
        assert_same_bits("d", got.at[MOERT_OP_BUFFER_d], want.at[MOERT_OP_BUFFER_d],
                         want.count[MOERT_OP_BUFFER_d]);
        ops_free(&got);
        ops_free(&want);
    }
}

/* ---- worked examples ---- */

/* One row, one gate, one up: K = 1 (GLU) or N = 1 (dGLU). */
static moert_op_options describe_one(moert_op_kind kind, moert_glu_form form) {
    moert_op_options o = MOERT_OP_OPTIONS_INIT;
    o.kind = kind;
    o.groups = o.rows = o.k = 1;
    o.n = kind == MOERT_OP_GLU ? 2 : 1;
    o.glu = form;
    o.prob = true;
    return o;
}

static void test_forward_example(void **state) {
    (void)state;
    const uint32_t end = 1;
    const struct {
        moert_glu_form form;
        bool linear_first;
        double d;
    } examples[] = {{MOERT_GLU_SWIGLU, false, -9.398172},
                    {{false, 7.0f, 1.702f, 1.0f}, false, -8.057284},
                    {MOERT_GLU_SWIGLU, true, -0.0558917}};
    for (size_t i = 0; i < 6; i++) {
        moert_op_options o = describe_one(MOERT_OP_GLU, examples[i / 2].form);
        o.linear_first = examples[i / 2].linear_first;
        o.alpha = o.bias = o.save_c = true;
        o.c.type = MOERT_NUMBER_BF16;
        ops_data data = ops_make(&o, &end, true);
        data.at[MOERT_OP_BUFFER_x][0] = 1.0f;
        ops_weight(&data)[0] = 1.2345678f;
        ops_weight(&data)[1] = -2.3456789f;
        data.at[MOERT_OP_BUFFER_alpha][0] = 2.0f;
        data.at[MOERT_OP_BUFFER_bias][0] = 0.125f;
        data.at[MOERT_OP_BUFFER_bias][1] = -0.5f;
        data.at[MOERT_OP_BUFFER_prob][0] = 0.75f;
        ops_execute(backends[i % 2], &data, 1);
        assert_true(data.at[MOERT_OP_BUFFER_c][0] == 2.59375f);
        assert_true(data.at[MOERT_OP_BUFFER_c][1] == -5.1875f);
        assert_within((double)data.at[MOERT_OP_BUFFER_d][0], examples[i / 2].d, 1e-6);
        ops_free(&data);
    }
}

static void test_backward_example(void **state) {
    (void)state;
    const uint32_t end = 1;
    const moert_glu_form geglu = {false, 7.0f, 1.702f, 1.0f};
    const struct {
        moert_glu_form form;
        float gate, up;
        double d_gate, d_up, dprob;
    } examples[] = {{MOERT_GLU_SWIGLU, 2.59375f, -5.1875f, -2.136515, 0.905016, -6.259694},
                    {geglu, 2.59375f, -5.1875f, -1.633425, 0.961028, -5.365740},
                    {geglu, 8.0f, -9.0f, 0.0, 0.0, -20.999860}};
    for (size_t i = 0; i < 6; i++) {
        moert_op_options o = describe_one(MOERT_OP_DGLU, examples[i / 2].form);
        o.dprob = true;
        ops_data data = ops_make(&o, &end, true);
        data.at[MOERT_OP_BUFFER_y][0] = 1.0f;
        ops_weight(&data)[0] = 0.5f;
        data.at[MOERT_OP_BUFFER_c][0] = examples[i / 2].gate;
        data.at[MOERT_OP_BUFFER_c][1] = examples[i / 2].up;
        data.at[MOERT_OP_BUFFER_prob][0] = 0.75f;
        data.at[MOERT_OP_BUFFER_dprob][0] = 0.0f;
        ops_execute(backends[i % 2], &data, 1);
        assert_within((double)data.at[MOERT_OP_BUFFER_d][0], examples[i / 2].d_gate, 2e-6);
        assert_within((double)data.at[MOERT_OP_BUFFER_d][1], examples[i / 2].d_up, 2e-6);
        assert_within((double)data.at[MOERT_OP_BUFFER_dprob][0], examples[i / 2].dprob, 4e-6);
        ops_free(&data);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward_is_the_formula_on_unrounded_values),
        cmocka_unit_test(test_prob_0_gives_zeros_and_leaves_c),
        cmocka_unit_test(test_backward_is_the_derivative_and_adds_to_its_sums),
        cmocka_unit_test(test_permuted_inputs_are_read_where_they_lie),
        cmocka_unit_test(test_forward_example),
        cmocka_unit_test(test_backward_example),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
