// run: check=1 all=1gpu,1san
/* The GLU: gradients against float64 finite differences, limits, and the promised equality of bits.
 * test_ops_glu has worked examples. */
#include "base/rng.h"
#include "gemm/gemm.h"
#include "support/test.h"

static const moert_glu_form forms[] = {
    MOERT_GLU_SWIGLU,
    {true, INFINITY, 1.0f, 0.0f, 0},
    MOERT_GLU_GPT_OSS,
    {false, 7.0f, 1.702f, 1.0f, 0},
    {false, 10.0f, 1.0f, 0.0f, 0},
    {true, 10.0f, 1.0f, 0.0f, 0},
};
enum { FORMS = MOERT_COUNT(forms) };

/* A GLU on host arrays; stride 0 means no prob and no dprob. */
typedef struct problem {
    moert_glu_form form;
    size_t rows, width, stride;
    float *v, *prob, *dh; /* inputs */
    float *h, *dv, *dprob;
} problem;

static problem make_problem(moert_glu_form form, size_t rows, size_t width, size_t stride) {
    problem p = {.form = form, .rows = rows, .width = width, .stride = stride};
    float **arrays[] = {&p.v, &p.prob, &p.dh, &p.h, &p.dv, &p.dprob};
    const size_t counts[] = {2 * rows * width, rows * stride,    rows * width,
                             rows * width,     2 * rows * width, rows * stride};
    for (size_t a = 0; a < 6; a++) {
        *arrays[a] = test_alloc(counts[a] * sizeof(float));
        for (size_t i = 0; i < counts[a]; i++)
            (*arrays[a])[i] = a < 3 ? (float)moert_rng_normal(7, a, i) : NAN;
    }
    for (size_t i = 0; i < 2 * rows * width; i++)
        p.v[i] *= 6.0f; /* many values exceed the GLU's limits */
    return p;
}

/* The dtypes and buffers of the matrices on the device. */
typedef struct storage {
    moert_dtype from, type; /* from: dtype of v and dh; type: dtype of h and dv */
    bool in_place;          /* dv overwrites v */
} storage;

/* Runs forward and backward on the device. */
static void run_as(problem *p, const char *backend, storage as) {
    const size_t count = p->rows * p->width, probs = p->rows * p->stride;
    set_variable("MOERT_BACKEND", backend);
    moert_buffer *v = upload_as(p->v, 2 * count, as.from);
    moert_buffer *prob = upload(p->prob, probs * sizeof(float));
    moert_buffer *dprob = upload(p->dprob, probs * sizeof(float));
    moert_glu glu = {.form = p->form,
                     .rows = p->rows,
                     .width = p->width,
                     .v = v,
                     .prob = p->stride > 0 ? prob : NULL,
                     .prob_stride = p->stride > 1 ? p->stride : 0,
                     .from = as.from,
                     .type = as.type,
                     .h = upload_as(p->h, count, as.type),
                     .dh = upload_as(p->dh, count, as.from),
                     .dv = as.in_place ? v : upload_as(p->dv, 2 * count, as.type),
                     .dprob = p->stride > 0 ? dprob : NULL};
    ASSERT_OK(moert_glu_forward(&glu));
    ASSERT_OK(moert_glu_backward(&glu));
    download_as(glu.h, p->h, count, as.type);
    download_as(glu.dv, p->dv, 2 * count, as.type);
    download_into(dprob, p->dprob, probs * sizeof(float));
}

static void run(problem *p, const char *backend) {
    run_as(p, backend, (storage){MOERT_DTYPE_F32, MOERT_DTYPE_F32, false});
}

static size_t gate_at(const problem *p, size_t m, size_t j) {
    return m * 2 * p->width + (p->form.interleaved ? 2 * j : j);
}

static size_t up_at(const problem *p, size_t m, size_t j) {
    return m * 2 * p->width + (p->form.interleaved ? 2 * j + 1 : p->width + j);
}

/* h by its definition, in float64. */
static double glu(moert_glu_form form, double prob, double g, double u) {
    const double limit = (double)form.limit, gc = fmin(g, limit);
    return prob * (fmax(fmin(u, limit), -limit) + (double)form.offset) * gc /
           (1.0 + exp(-(double)form.alpha * gc));
}

/* The derivative of h with respect to g if `by_g`, else with respect to u. */
static double slope(const problem *p, double prob, double g, double u, bool by_g) {
    const double step = 1e-6, dg = by_g ? step : 0.0, du = by_g ? 0.0 : step;
    return (glu(p->form, prob, g + dg, u + du) - glu(p->form, prob, g - dg, u - du)) / (2 * step);
}

/* |got - want| <= 2e-6 (|want| + scale) */
static void check_value(double got, double want, double scale) {
    assert_within(got, want, 2e-6 * (fabs(want) + scale));
}

TEST(test_forward_and_backward_match_float64) {
    const size_t widths[] = {1, 7, 8, 9, 15, 16, 17, 33, 40, 1025};
    for (size_t i = 0; i < FORMS * 10 * 2; i++) {
        problem p = make_problem(forms[i % FORMS], 5, widths[i / FORMS % 10], i % 3);
        run(&p, backends[i / FORMS / 10]);
        for (size_t m = 0; m < p.rows; m++) {
            const double prob = p.stride > 0 ? (double)p.prob[m * p.stride] : 1.0;
            double dprob = 0.0, scale = 0.0;
            for (size_t j = 0; j < p.width; j++) {
                const double g = (double)p.v[gate_at(&p, m, j)], u = (double)p.v[up_at(&p, m, j)];
                const double q = (double)p.dh[m * p.width + j], near = fabs(prob * u * q) * 1e-2;
                check_value((double)p.h[m * p.width + j], glu(p.form, prob, g, u), 1e-2);
                check_value((double)p.dv[gate_at(&p, m, j)], q * slope(&p, prob, g, u, true),
                            near + 1e-2);
                check_value((double)p.dv[up_at(&p, m, j)], q * slope(&p, prob, g, u, false), 1e-2);
                dprob += q * glu(p.form, 1.0, g, u);
                scale += fabs(q * glu(p.form, 1.0, g, u));
            }
            if (p.stride > 0)
                check_value((double)p.dprob[m * p.stride], dprob, scale);
        }
    }
}

TEST(test_gradients_pass_at_the_limit_and_stop_beyond) {
    for (size_t b = 0; b < 2; b++) {
        problem p = make_problem((moert_glu_form)MOERT_GLU_GPT_OSS, 1, 2, 0);
        const float v[] = {7.0f, -7.0f, nextafterf(7.0f, 8.0f), nextafterf(-7.0f, -8.0f)};
        memcpy(p.v, v, sizeof v);
        run(&p, backends[b]);
        assert_true(p.dv[0] != 0.0f && p.dv[1] != 0.0f && p.dv[2] == 0.0f && p.dv[3] == 0.0f);
    }
}

TEST(test_a_prob_of_zero_gives_exact_zeros_and_a_nonzero_dprob) {
    for (size_t i = 0; i < FORMS * 2; i++) {
        problem p = make_problem(forms[i % FORMS], 3, 19, 1);
        memset(p.prob, 0, 3 * sizeof p.prob[0]);
        run(&p, backends[i / FORMS]);
        for (size_t j = 0; j < 3 * 19; j++)
            assert_true(p.h[j] == 0.0f && p.dv[2 * j] == 0.0f && p.dv[2 * j + 1] == 0.0f);
        assert_true(p.dprob[0] != 0.0f && p.dprob[1] != 0.0f && p.dprob[2] != 0.0f);
    }
}

TEST(test_an_infinite_limit_makes_no_nan_and_a_nan_is_not_hidden) {
    for (size_t i = 0; i < FORMS * 2; i++) {
        problem p = make_problem(forms[i % FORMS], 2, 3, 1);
        const float extremes[] = {-1e4f, 1e4f, -88.8f, 103.0f, 0.0f, -0.0f};
        memcpy(p.v, extremes, sizeof extremes);
        p.v[gate_at(&p, 1, 0)] = NAN;
        p.v[up_at(&p, 1, 2)] = NAN;
        run(&p, backends[i / FORMS]);
        for (size_t j = 0; j < 3; j++)
            assert_true(isfinite(p.h[j]) && isfinite(p.dv[2 * j]) && isfinite(p.dv[2 * j + 1]));
        assert_true(isnan(p.h[3]) && !isnan(p.h[4]) && isnan(p.h[5]));
        assert_true(isnan(p.dv[gate_at(&p, 1, 0)]) && isnan(p.dv[gate_at(&p, 1, 2)]));
        assert_true(isfinite(p.dprob[0]) && isnan(p.dprob[1]));
    }
}

TEST(test_a_value_has_the_same_bits_at_any_position) {
    const size_t widths[] = {1, 5, 16, 37};
    problem all = make_problem(forms[2], 41, 37, 1);
    run(&all, "portable");
    for (size_t w = 0; w < 4; w++)
        for (size_t m = 0; m < all.rows; m += 8) {
            /* columns [37 - width, 37) of row m, computed without the other columns */
            const size_t width = widths[w], first = all.width - width;
            problem p = make_problem(forms[2], 1, width, 1);
            memcpy(p.v, all.v + gate_at(&all, m, first), 2 * width * sizeof(float));
            memcpy(p.dh, all.dh + m * all.width + first, width * sizeof(float));
            p.prob[0] = all.prob[m];
            run(&p, "portable");
            assert_same_bits("h", p.h, all.h + m * all.width + first, width);
            assert_same_bits("dv", p.dv, all.dv + gate_at(&all, m, first), 2 * width);
            if (width == all.width)
                assert_same_bits("dprob", p.dprob, all.dprob + m, 1);
        }
}

TEST(test_the_layouts_have_the_same_bits) {
    problem halves = make_problem(forms[3], 9, 45, 1),
            alternating = make_problem(forms[2], 9, 45, 1);
    for (size_t m = 0; m < 9; m++)
        for (size_t j = 0; j < 45; j++) {
            alternating.v[gate_at(&alternating, m, j)] = halves.v[gate_at(&halves, m, j)];
            alternating.v[up_at(&alternating, m, j)] = halves.v[up_at(&halves, m, j)];
        }
    run(&halves, "portable");
    run(&alternating, "portable");
    assert_same_bits("h", alternating.h, halves.h, 9 * 45);
    assert_same_bits("dprob", alternating.dprob, halves.dprob, 9);
    for (size_t m = 0; m < 9; m++)
        for (size_t j = 0; j < 45; j++) {
            assert_same_bits("dg", &alternating.dv[gate_at(&alternating, m, j)],
                             &halves.dv[gate_at(&halves, m, j)], 1);
            assert_same_bits("du", &alternating.dv[up_at(&alternating, m, j)],
                             &halves.dv[up_at(&halves, m, j)], 1);
        }
}

TEST(test_strided_probs_leave_their_neighbours_alone_and_no_rows_are_no_work) {
    for (size_t b = 0; b < 2; b++) {
        problem none = make_problem(forms[0], 0, 16, 1);
        run(&none, backends[b]);
        problem p = make_problem(forms[0], 6, 4, 3);
        run(&p, backends[b]);
        for (size_t i = 0; i < 18; i++)
            assert_int_equal(isnan(p.dprob[i]) != 0, i % 3 != 0);
    }
}

/* Compares a GLU on stored dtypes with one on the same values in float32. */
static void check_storage(moert_glu_form form, size_t width, const char *backend, storage as) {
    enum { ROWS = 5 };
    problem full = make_problem(form, ROWS, width, 1), rounded = make_problem(form, ROWS, width, 1);
    round_all(full.v, 2 * ROWS * width, as.from);
    round_all(full.dh, ROWS * width, as.from);
    run(&full, backend);
    run_as(&rounded, backend, as);
    round_all(full.h, ROWS * width, as.type);
    round_all(full.dv, 2 * ROWS * width, as.type);
    assert_same_bits("h", rounded.h, full.h, ROWS * width);
    assert_same_bits("dv", rounded.dv, full.dv, 2 * ROWS * width);
    assert_same_bits("dprob", rounded.dprob, full.dprob, ROWS);
}

TEST(test_dtypes_round_only_the_inputs_and_results) {
    static const storage storages[] = {{MOERT_DTYPE_F32, MOERT_DTYPE_F32, true},
                                       {MOERT_DTYPE_F32, MOERT_DTYPE_BF16, false},
                                       {MOERT_DTYPE_BF16, MOERT_DTYPE_F32, false},
                                       {MOERT_DTYPE_BF16, MOERT_DTYPE_BF16, true}};
    const size_t widths[] = {1, 15, 16, 60, 132, 1025};
    for (size_t i = 0; i < FORMS * 6 * 4 * 2; i++)
        check_storage(forms[i % FORMS], widths[i / FORMS % 6], backends[i / FORMS / 6 / 4],
                      storages[i / FORMS / 6 % 4]);
}

TESTS(open_test_device, close_test_device)
