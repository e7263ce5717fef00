// run: check=1 all=1san
/* dGLU ops: the worked example, and finite differences in float64 for every form, order and
 * interleaving. */
#include "support/op/glu.h"

/* The upstream gradient of row r, result j, before prob. */
static double upstream(const ops_data *data, size_t r, size_t j) {
    const moert_op_options *o = &data->shape.options;
    const size_t g = ops_glu_group(r);
    const double alpha =
        o->glu.offset == 0.0f ? ops_glu_operand(data, MOERT_OP_BUFFER_alpha, g) : 1.0;
    double acc = 0.0;
    for (size_t n = 0; n < o->n; n++)
        acc += (double)data->at[MOERT_OP_BUFFER_y][r * o->n + n] *
               (double)ops_weight(data)[(g * o->n + n) * o->k + j];
    return alpha * alpha * acc;
}

/* Compares row r with central differences, and adds to the sums and peaks of its group. */
static void check_backward_row(const char *title, const ops_data *got, size_t r, double *dbias,
                               double *peak) {
    const moert_op_options *o = &got->shape.options;
    const size_t g = ops_glu_group(r), width = got->shape.glu_width;
    const double beta = o->glu.offset == 0.0f ? ops_glu_operand(got, MOERT_OP_BUFFER_beta, g) : 1.0;
    const double prob = ops_glu_operand(got, MOERT_OP_BUFFER_prob, r), step = 1e-5;
    double dprob = 0.0, sum = 0.0;
    for (size_t j = 0; j < width; j++) {
        const size_t at[] = {ops_glu_column(&got->shape, j, false),
                             ops_glu_column(&got->shape, j, true)};
        const float *c = got->at[MOERT_OP_BUFFER_c] + r * (size_t)o->c.stride;
        const double gate = beta * (double)c[at[0]], up = beta * (double)c[at[1]];
        const double q = upstream(got, r, j);
        const double want[] = {
            q * prob *
                (ops_glu_value(o->glu, gate + step, up) - ops_glu_value(o->glu, gate - step, up)) /
                (2 * step),
            q * prob *
                (ops_glu_value(o->glu, gate, up + step) - ops_glu_value(o->glu, gate, up - step)) /
                (2 * step)};
        for (size_t s = 0; s < 2; s++) {
            const double d = (double)got->at[MOERT_OP_BUFFER_d][r * (size_t)o->d.stride + at[s]];
            assert_rounded(title, o->d.type, d, want[s], fabs(q * prob) * 0.1);
            dbias[g * 2 * width + at[s]] += want[s];
            peak[2 * g + s] = fmax(peak[2 * g + s], fabs(want[s]));
        }
        dprob += q * ops_glu_value(o->glu, gate, up);
        sum += fabs(q * ops_glu_value(o->glu, gate, up));
    }
    if (o->dprob)
        assert_rounded(title, MOERT_DTYPE_F32, (double)got->at[MOERT_OP_BUFFER_dprob][r],
                       dprob + 3.0, sum + 3.0);
}

static void check_sums(const char *title, const ops_data *got, const double *dbias,
                       const double *peak) {
    const moert_op_options *o = &got->shape.options;
    const size_t wide = 2 * got->shape.glu_width;
    for (size_t i = 0; o->dbias && i < OPS_GLU_GROUPS * wide; i++)
        assert_rounded(title, o->bias_type, (double)got->at[MOERT_OP_BUFFER_dbias][i],
                       dbias[i] - 2.0, 500.0);
    for (size_t i = 0; o->amax && i < 2 * OPS_GLU_GROUPS; i++)
        if (i / 2 == 0 || i / 2 == 2)
            /* a group without rows keeps its amax, infinity */
            assert_true(isinf(got->at[MOERT_OP_BUFFER_amax][i]));
        else
            assert_rounded(title, MOERT_DTYPE_F32, (double)got->at[MOERT_OP_BUFFER_amax][i],
                           peak[i], 10.0);
}

TEST(test_backward_is_the_derivative_and_adds_to_its_sums) {
    for (size_t i = 0; i < OPS_GLU_CASES * 2; i++) {
        moert_op_options o = ops_glu_case(MOERT_OP_DGLU, i / 2);
        const char *title = titled("case %zu, %s", i / 2, backends[i % 2]);
        o.beta = i % 3 == 0;
        o.dprob = i % 4 != 3;
        o.dbias = i % 8 < 5;
        ops_data got = ops_make(&o, ops_glu_ends, true);
        double *dbias = test_alloc(OPS_GLU_GROUPS * 2 * o.k * sizeof *dbias),
               peak[2 * OPS_GLU_GROUPS] = {0};
        for (size_t k = 0; k < got.count[MOERT_OP_BUFFER_c]; k++)
            /* some values exceed the GLU's limits, none equals one */
            got.at[MOERT_OP_BUFFER_c][k] *= 4.5f;
        for (size_t k = 0; k < got.count[MOERT_OP_BUFFER_dprob]; k++)
            got.at[MOERT_OP_BUFFER_dprob][k] = 3.0f;
        for (size_t k = 0; k < got.count[MOERT_OP_BUFFER_dbias]; k++)
            got.at[MOERT_OP_BUFFER_dbias][k] = -2.0f;
        ops_execute(backends[i % 2], &got, 1);
        for (size_t r = 0; r < ops_glu_ends[OPS_GLU_GROUPS - 1]; r++)
            check_backward_row(title, &got, r, dbias, peak);
        check_sums(title, &got, dbias, peak);
    }
}

/* ---- the worked example ---- */

TEST(test_backward_example) {
    const uint32_t end = 1;
    const moert_glu_form geglu = {false, 7.0f, 1.702f, 1.0f, 0};
    const struct {
        moert_glu_form form;
        float gate, up;
        double d_gate, d_up, dprob;
    } examples[] = {{MOERT_GLU_SWIGLU, 2.59375f, -5.1875f, -2.136515, 0.905016, -6.259694},
                    {geglu, 2.59375f, -5.1875f, -1.633425, 0.961028, -5.365740},
                    {geglu, 8.0f, -9.0f, 0.0, 0.0, -20.999860}};
    for (size_t i = 0; i < 6; i++) {
        moert_op_options o = ops_glu_one(MOERT_OP_DGLU, examples[i / 2].form);
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
    }
}

TESTS(open_test_device, close_test_device)
