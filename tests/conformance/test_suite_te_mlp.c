// run: np=1
/*
 * TransformerEngine's table of grouped MLPs, in bfloat16: hidden sizes 128 and 256, groups of 0,
 * 256, 512 and 768 rows in any order, SwiGLU and clamped GLUs; forward and backward as six ops, one
 * on the other's results, against float64 from end to end.
 */
#include "support/op/glu.h"
#include "support/suite.h"

enum { GROUPS = 4, M = 1536, STEPS = 6 };
/* of the largest or the typical magnitude: roundings of up to four 16-bit operands in a row */
static const double tolerance = 0.03;

/* Square experts, I = H; weights[g] are [2H,H] and [H,H]. */
typedef struct mlp {
    size_t hidden;
    const uint32_t *ends;
    moert_glu_form form;
    float *x, *w1, *w2, *dy, *prob;
} mlp;

/* In float64, but for c, of which the backward is that of the rounded values. */
typedef struct oracle {
    double *v, *h, *y, *dv, *dprob, *dx, *dw1, *dw2;
} oracle;

static float *values(uint64_t key, size_t n, double deviation) {
    float *x = test_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        const uint32_t b = suite_bits(key, i);
        const double sum = (b & 255) + (b >> 8 & 255) + (b >> 16 & 255) + (b >> 24);
        x[i] = ops_round(MOERT_NUMBER_BF16, deviation * (sum - 510.0) / 147.8);
    }
    return x;
}

/* ---- on the device ---- */

/* One op on bfloat16 rows; what `in` has replaces its operands. */
static ops_data step(const char *backend, const mlp *m, moert_op_kind kind, size_t n, size_t k,
                     const float *const in[MOERT_OP_BUFFERS]) {
    moert_op_options o = ops_sized(kind, GROUPS, M, n, k);
    const bool glu = kind == MOERT_OP_GLU, dglu = kind == MOERT_OP_DGLU;
    o.x.type = o.y.type = o.c.type = o.d.type = MOERT_NUMBER_BF16;
    o.weight.type = kind == MOERT_OP_GEMM_WGRAD ? MOERT_NUMBER_F32 : MOERT_NUMBER_BF16;
    o.glu = m->form;
    o.interleave = 32;
    o.prob = glu || dglu;
    o.save_c = glu;
    o.dprob = dglu;
    ops_data data = ops_make(&o, m->ends, true);
    for (size_t i = 0; i < MOERT_OP_BUFFERS; i++)
        if (in[i] != NULL)
            memcpy(data.at[i], in[i], data.count[i] * sizeof(float));
    for (size_t r = 0; r < data.count[MOERT_OP_BUFFER_dprob]; r++)
        data.at[MOERT_OP_BUFFER_dprob][r] = 0.0f;
    ops_execute(backend, &data, 1);
    return data;
}

typedef enum which { GLU, FC2, DGLU, DGRAD, WGRAD1, WGRAD2 } which;

static void run(const char *backend, const mlp *m, ops_data *steps) {
    const size_t h = m->hidden;
#define IN(...)    ((const float *const[MOERT_OP_BUFFERS]){__VA_ARGS__})
#define OF(buffer) [MOERT_OP_BUFFER_##buffer]
    steps[GLU] = step(backend, m, MOERT_OP_GLU, 2 * h, h,
                      IN(OF(x) = m->x, OF(weight) = m->w1, OF(prob) = m->prob));
    const float *c = steps[GLU].at[MOERT_OP_BUFFER_c], *d = steps[GLU].at[MOERT_OP_BUFFER_d];
    steps[FC2] = step(backend, m, MOERT_OP_GEMM_FORWARD, h, h, IN(OF(x) = d, OF(weight) = m->w2));
    steps[DGLU] = step(backend, m, MOERT_OP_DGLU, h, h,
                       IN(OF(y) = m->dy, OF(weight) = m->w2, OF(c) = c, OF(prob) = m->prob));
    const float *dv = steps[DGLU].at[MOERT_OP_BUFFER_d];
    steps[DGRAD] =
        step(backend, m, MOERT_OP_GEMM_DGRAD, 2 * h, h, IN(OF(y) = dv, OF(weight) = m->w1));
    steps[WGRAD1] = step(backend, m, MOERT_OP_GEMM_WGRAD, 2 * h, h, IN(OF(y) = dv, OF(x) = m->x));
    steps[WGRAD2] = step(backend, m, MOERT_OP_GEMM_WGRAD, h, h, IN(OF(y) = m->dy, OF(x) = d));
}

/* ---- in float64 ---- */

/* y[n] += w[n,k] x[k] */
static void apply(const float *w, const double *x, size_t n, size_t k, double *y) {
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < k; i++)
            y[j] += (double)w[j * k + i] * x[i];
}

/* x[k] += w[n,k]^T y[n]; dw[n,k] += y a^T */
static void apply_transposed(const float *w, const double *y, size_t n, size_t k, double *x) {
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < k; i++)
            x[i] += (double)w[j * k + i] * y[j];
}

static void add_outer(const double *y, const double *x, size_t n, size_t k, double *dw) {
    for (size_t j = 0; j < n; j++)
        for (size_t i = 0; i < k; i++)
            dw[j * k + i] += y[j] * x[i];
}

/* Row r of group g; c[2H] are its rounded pre-activations. */
static void expect_row(const mlp *m, size_t g, size_t r, const float *c, oracle *o) {
    const size_t h = m->hidden;
    const float *w1 = m->w1 + g * 2 * h * h, *w2 = m->w2 + g * h * h;
    const double prob = (double)m->prob[r], eps = 1e-6;
    double x[256], dy[256], dh[256] = {0}, *v = o->v + r * 2 * h, *dv = o->dv + r * 2 * h;
    for (size_t i = 0; i < h; i++) {
        x[i] = (double)m->x[r * h + i];
        dy[i] = (double)m->dy[r * h + i];
    }
    apply(w1, x, 2 * h, h, v);
    apply_transposed(w2, dy, h, h, dh);
    for (size_t i = 0; i < h; i++) {
        const size_t at = i / 32 * 64 + i % 32; /* gates and ups in turn, 32 of each */
        const double gate = (double)c[at], up = (double)c[at + 32];
        o->h[r * h + i] = prob * ops_glu_value(m->form, v[at], v[at + 32]);
        dv[at] = dh[i] * prob / (2 * eps) *
                 (ops_glu_value(m->form, gate + eps, up) - ops_glu_value(m->form, gate - eps, up));
        dv[at + 32] =
            dh[i] * prob / (2 * eps) *
            (ops_glu_value(m->form, gate, up + eps) - ops_glu_value(m->form, gate, up - eps));
        o->dprob[r] += dh[i] * ops_glu_value(m->form, gate, up);
    }
    apply(w2, o->h + r * h, h, h, o->y + r * h);
    apply_transposed(w1, dv, 2 * h, h, o->dx + r * h);
    add_outer(dv, x, 2 * h, h, o->dw1 + g * 2 * h * h);
    add_outer(dy, o->h + r * h, h, h, o->dw2 + g * h * h);
}

static void check(const mlp *m, const ops_data *steps) {
    const size_t h = m->hidden, n = M * h, weight = GROUPS * h * h;
    oracle o = {test_alloc(2 * n * 8),      test_alloc(n * 8),     test_alloc(n * 8),
                test_alloc(2 * n * 8),      test_alloc(M * 8),     test_alloc(n * 8),
                test_alloc(2 * weight * 8), test_alloc(weight * 8)};
    for (size_t g = 0, r = 0; g < GROUPS; g++)
        for (; r < m->ends[g]; r++)
            expect_row(m, g, r, steps[GLU].at[MOERT_OP_BUFFER_c] + r * 2 * h, &o);
    assert_near("c", steps[GLU].at[MOERT_OP_BUFFER_c], o.v, 2 * n, tolerance);
    assert_near("h", steps[GLU].at[MOERT_OP_BUFFER_d], o.h, n, tolerance);
    assert_near("y", steps[FC2].at[MOERT_OP_BUFFER_y], o.y, n, tolerance);
    assert_near("dv", steps[DGLU].at[MOERT_OP_BUFFER_d], o.dv, 2 * n, tolerance);
    assert_near("dprob", steps[DGLU].at[MOERT_OP_BUFFER_dprob], o.dprob, M, tolerance);
    assert_near("dx", steps[DGRAD].at[MOERT_OP_BUFFER_x], o.dx, n, tolerance);
    assert_near("dW1", ops_weight(&steps[WGRAD1]), o.dw1, 2 * weight, tolerance);
    assert_near("dW2", ops_weight(&steps[WGRAD2]), o.dw2, weight, tolerance);
}

TEST(test_grouped_mlps_agree_with_float64) {
    /* a limit that no bfloat16 number lies on: there the differences are half the derivative */
    static const moert_glu_form forms[] = {
        MOERT_GLU_SWIGLU, {false, 7.0f, 1.702f, 1.0f, 0}, {false, 1.26f, 1.5f, 0.5f, 0}};
    static const uint32_t ends[][GROUPS] = {
        {0, 256, 768, M}, {768, 768, 1024, M}, {512, 1280, M, M}};
    for (size_t i = 0; i < 6; i++) {
        const size_t h = i < 3 ? 128 : 256;
        if (suite_skips(h > 128))
            break;
        const double spread = 1.5 / sqrt((double)h);
        mlp m = {h,
                 ends[i % 3],
                 forms[(i + i / 3) % 3],
                 values(1, M * h, 1.0),
                 values(2, GROUPS * 2 * h * h, spread),
                 values(3, GROUPS * h * h, spread),
                 values(4, M * h, 1.0),
                 values(5, M, 0.5)};
        ops_data steps[STEPS];
        run(i == 0 ? "reference" : "portable", &m, steps);
        check(&m, steps);
    }
}

TESTS(open_test_device, close_test_device)
