// run: np=1
/*
 * TransformerEngine's table of grouped MLPs, in bfloat16: hidden sizes 128 and 256, groups of 0,
 * 256, 512 and 768 rows in any order, SwiGLU and clamped GLUs; forward and backward as six ops, one
 * on the other's results, against float64 from end to end.
 */
#include "base/memory.h"
#include "support/op/exact.h"
#include "support/op/run.h"
#include "support/suite.h"

enum { GROUPS = 4, M = 1536 };
/* of the largest or the typical magnitude: roundings of up to four 16-bit operands in a row */
static const double tolerance = 0.03;

/* Square experts, I = H; weights[g] are [2H,H] and [H,H]. */
typedef struct mlp {
    size_t hidden;
    const uint32_t *ends;
    moert_glu_form form;
    float *x, *w1, *w2, *dy, *prob;
} mlp;

static float *values(uint64_t key, size_t n, double deviation) {
    float *x = test_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        const uint32_t b = suite_bits(key, i);
        const double sum = (b & 255) + (b >> 8 & 255) + (b >> 16 & 255) + (b >> 24);
        x[i] = round_to(MOERT_NUMBER_BF16, deviation * (sum - 510.0) / 147.8);
    }
    return x;
}

/* ---- steps ---- */

/* One op whose operands are those of `in`: on bfloat16 rows by a backend, or (NULL) on float32 rows
 * by float64. */
static ops_data step(const char *backend, const mlp *m, moert_op_kind kind, size_t n, size_t k,
                     const float *const in[MOERT_OP_BUFFERS]) {
    moert_op_options o = ops_sized(kind, GROUPS, M, n, k);
    const bool glu = kind == MOERT_OP_GLU, dglu = kind == MOERT_OP_DGLU;
    const moert_number type = backend != NULL ? MOERT_NUMBER_BF16 : MOERT_NUMBER_F32;
    o.x.type = o.y.type = o.c.type = o.d.type = type;
    o.weight.type = kind == MOERT_OP_GEMM_WGRAD ? MOERT_NUMBER_F32 : type;
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
    if (backend != NULL) {
        ops_execute(backend, &data, 1);
        return data;
    }
    const ops_bytes plain = ops_encode(&data);
    const ops_exact exact = ops_exact_of(&plain, 0.0);
    float *result = data.at[ops_result_buffer(kind)];
    for (size_t i = 0; i < exact.lines * exact.width; i++)
        result[i] = (float)exact.result[i];
    for (size_t i = 0; glu && i < M * n; i++)
        data.at[MOERT_OP_BUFFER_c][i] = (float)exact.c[i];
    for (size_t r = 0; dglu && r < M; r++)
        data.at[MOERT_OP_BUFFER_dprob][r] = (float)exact.dprob[r];
    return data;
}

typedef enum which { GLU, FC2, DGLU, DGRAD, WGRAD1, WGRAD2, STEPS } which;

/* The backward is that of c, unless NULL, or of the forward. */
static void run(const char *backend, const mlp *m, const float *c, ops_data *steps) {
    const size_t h = m->hidden;
#define IN(...)    ((const float *const[MOERT_OP_BUFFERS]){__VA_ARGS__})
#define OF(buffer) [MOERT_OP_BUFFER_##buffer]
    steps[GLU] = step(backend, m, MOERT_OP_GLU, 2 * h, h,
                      IN(OF(x) = m->x, OF(weight) = m->w1, OF(prob) = m->prob));
    const float *d = steps[GLU].at[MOERT_OP_BUFFER_d];
    c = c != NULL ? c : steps[GLU].at[MOERT_OP_BUFFER_c];
    steps[FC2] = step(backend, m, MOERT_OP_GEMM_FORWARD, h, h, IN(OF(x) = d, OF(weight) = m->w2));
    steps[DGLU] = step(backend, m, MOERT_OP_DGLU, h, h,
                       IN(OF(y) = m->dy, OF(weight) = m->w2, OF(c) = c, OF(prob) = m->prob));
    const float *dv = steps[DGLU].at[MOERT_OP_BUFFER_d];
    steps[DGRAD] =
        step(backend, m, MOERT_OP_GEMM_DGRAD, 2 * h, h, IN(OF(y) = dv, OF(weight) = m->w1));
    steps[WGRAD1] = step(backend, m, MOERT_OP_GEMM_WGRAD, 2 * h, h, IN(OF(y) = dv, OF(x) = m->x));
    steps[WGRAD2] = step(backend, m, MOERT_OP_GEMM_WGRAD, h, h, IN(OF(y) = m->dy, OF(x) = d));
}

/* ---- against float64 ---- */

static void check(const ops_data *got, const ops_data *want) {
    static const struct {
        const char *name;
        which from;
        moert_op_buffer buffer;
    } results[] = {
        {"c", GLU, MOERT_OP_BUFFER_c},           {"h", GLU, MOERT_OP_BUFFER_d},
        {"y", FC2, MOERT_OP_BUFFER_y},           {"dv", DGLU, MOERT_OP_BUFFER_d},
        {"dprob", DGLU, MOERT_OP_BUFFER_dprob},  {"dx", DGRAD, MOERT_OP_BUFFER_x},
        {"dW1", WGRAD1, MOERT_OP_BUFFER_weight}, {"dW2", WGRAD2, MOERT_OP_BUFFER_weight}};
    for (size_t i = 0; i < MOERT_COUNT(results); i++) {
        const float *exact = want[results[i].from].at[results[i].buffer];
        const size_t n = want[results[i].from].count[results[i].buffer];
        assert_near(results[i].name, got[results[i].from].at[results[i].buffer],
                    to_doubles(exact, n), n, tolerance);
    }
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
        ops_data got[STEPS], want[STEPS];
        run(i == 0 ? "reference" : "portable", &m, NULL, got);
        run(NULL, &m, got[GLU].at[MOERT_OP_BUFFER_c], want);
        check(got, want);
    }
}

TESTS(open_test_device, close_test_device)
