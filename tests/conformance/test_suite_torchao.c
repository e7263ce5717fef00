// run: check=1
/*
 * torchao's limits on the ratio of signal to quantization noise, for matrices and for the three
 * grouped GEMMs of training with rounded operands. test_quantize has torchao's tests of bytes,
 * test_swizzle those of tiled scales.
 */
#include "base/memory.h"
#include "base/dtype.h"
#include "gemm/gemm.h"
#include "support/quant/quantized.h"
#include "support/suite.h"

enum { MOST_GROUPS = 16, SAMPLES = 4096 };

/* Sums of squares of a signal and of the noise in it. */
typedef struct power {
    double signal, noise;
} power;

static void add(power *p, double want, double got) {
    p->signal += want * want;
    p->noise += (got - want) * (got - want);
}

/* ---- matrices ---- */

static const struct {
    moert_format format;
    moert_nvfp4_rule rule;
    double limit, gemm_limit;
} formats[] = {
    {MOERT_FORMAT_MXFP8_E4M3, MOERT_NVFP4_TORCHAO, 18.0, 27.0},
    {MOERT_FORMAT_MXFP8_E5M2, MOERT_NVFP4_TORCHAO, 13.0, 0.0},
    {MOERT_FORMAT_MXFP4, MOERT_NVFP4_TORCHAO, 13.0, 0.0},
    {MOERT_FORMAT_NVFP4, MOERT_NVFP4_TORCHAO, 8.0, 16.0},
    {MOERT_FORMAT_NVFP4, MOERT_NVFP4_TE, 8.0, 16.0},
};
enum { FORMATS = MOERT_COUNT(formats) };

static moert_quantizer how_of(size_t format) {
    return HOW(.format = formats[format].format, .nvfp4_rule = formats[format].rule);
}

TEST(test_a_matrix_keeps_its_signal_in_every_format) {
    static const size_t shapes[][2] = {{2, 32}, {32, 64}, {33, 96}, {128, 256}, {1, 1024}};
    for (size_t i = 0; i < FORMATS * 2 * 2; i++)
        for (size_t s = 0; s < 5; s++) {
            const matrix m = {suite_normal(s, shapes[s][0] * shapes[s][1], 1.0), shapes[s][0],
                              shapes[s][1], NULL, 0};
            moert_quantizer how = how_of(i % FORMATS);
            how.scale_rounding = i / FORMATS % 2 ? MOERT_SCALE_FLOOR : MOERT_SCALE_RCEIL;
            quantized z = quantize(suite_backends[i / FORMATS / 2], &how, &m);
            power p = {0};
            for (size_t k = 0; k < z.elements; k++)
                add(&p, (double)m.x[k], (double)z.back[k]);
            suite_assert_above(moert_format_name(how.format), p.signal, p.noise,
                               formats[i % FORMATS].limit);
        }
}

/* A NaN makes its block NaN and does not change the next one; an infinity becomes the largest
 * value. */
TEST(test_special_values_stay_in_their_block) {
    float x[3 * 32];
    for (size_t i = 0; i < 96; i++)
        x[i] = 1.0f;
    x[3] = NAN;
    x[64] = -INFINITY;
    const matrix m = {x, 1, 96, NULL, 0};
    for (size_t b = 0; b < 2; b++) {
        quantized z = quantize(suite_backends[b], &HOW(.axis = MOERT_AXIS_ROW), &m);
        assert_int_equal(z.scale[0], 0xFF);
        for (size_t i = 0; i < 32; i++)
            assert_true(isnan(z.back[i]) && z.q[i] == 0x7F && z.back[32 + i] == 1.0f);
        assert_true(z.scale[2] == 0xFE && z.q[64] == 0xFE && z.q[65] == 0);
    }
}

/* ---- grouped GEMMs ---- */

typedef struct row {
    size_t groups, rows, n, k;
    /* ends of the groups; if the last end is 0, rows are split at random */
    uint32_t ends[MOST_GROUPS];
    bool slow;
} row;

/* x[M,K], weight[G,N,K] and y[M,N] before quantization. */
typedef struct operands {
    const row *r;
    uint32_t ends[MOST_GROUPS], weight_ends[MOST_GROUPS];
    float *x, *weight, *y;
} operands;

/* Quantizes and dequantizes a matrix, in blocks along its rows, or along the columns of each
 * group. */
static float *rounded(size_t format, matrix m, bool along_rows) {
    moert_quantizer how = how_of(format);
    how.axis = along_rows ? MOERT_AXIS_ROW : MOERT_AXIS_COLUMN;
    how.group_scales = how.format == MOERT_FORMAT_NVFP4;
    return quantize("portable", &how, &m).back;
}

typedef enum kind { FORWARD, DGRAD, WGRAD, KINDS } kind;

/* Runs a GEMM of two operands on the device. */
static float *multiply(kind which, const operands *o, const float *a, const float *b, size_t n) {
    const row *r = o->r;
    moert_buffer *ends = upload(o->ends, r->groups * sizeof *o->ends);
    moert_gemm gemm = {
        .kind = (moert_gemm_kind)which, .groups = {ends, r->groups, r->rows}, .n = r->n, .k = r->k};
    moert_buffer *result = unset_floats(n);
    const size_t weights = r->groups * r->n * r->k * sizeof(float);
    gemm.x = which == DGRAD ? result : upload(a, r->rows * r->k * sizeof(float));
    gemm.weight = which == WGRAD ? result : upload(b, weights);
    gemm.y =
        which == FORWARD ? result : upload(which == DGRAD ? a : b, r->rows * r->n * sizeof(float));
    ASSERT_OK(moert_gemm_run(&gemm));
    return download(result, n * sizeof(float));
}

/* Element i of the GEMM of the unrounded operands, in float64. */
static double exact(kind which, const operands *o, size_t i) {
    const row *r = o->r;
    const size_t width = which == FORWARD ? r->n : r->k, line = i / width, j = i % width;
    size_t g = 0;
    double sum = 0.0;
    while (which != WGRAD && o->ends[g] <= line)
        g++;
    const float *weight = o->weight + g * r->n * r->k;
    if (which == FORWARD)
        for (size_t k = 0; k < r->k; k++)
            sum += (double)o->x[line * r->k + k] * (double)weight[j * r->k + k];
    if (which == DGRAD)
        for (size_t n = 0; n < r->n; n++)
            sum += (double)o->y[line * r->n + n] * (double)weight[n * r->k + j];
    if (which == WGRAD)
        for (size_t t = line / r->n > 0 ? o->ends[line / r->n - 1] : 0; t < o->ends[line / r->n];
             t++)
            sum += (double)o->y[t * r->n + line % r->n] * (double)o->x[t * r->k + j];
    return sum;
}

static void check_gemm(size_t format, kind which, const operands *o) {
    const row *r = o->r;
    const size_t before = owned_count();
    const size_t n = which == FORWARD ? r->rows * r->n
                     : which == DGRAD ? r->rows * r->k
                                      : r->groups * r->n * r->k;
    /* blocks of both operands lie along the reduction index */
    float *a =
        which == DGRAD
            ? rounded(format, (matrix){o->y, r->rows, r->n, o->ends, r->groups}, true)
            : rounded(format, (matrix){o->x, r->rows, r->k, o->ends, r->groups}, which == FORWARD);
    float *b = which == WGRAD
                   ? rounded(format, (matrix){o->y, r->rows, r->n, o->ends, r->groups}, false)
                   : rounded(format,
                             (matrix){o->weight, r->groups * r->n, r->k, o->weight_ends, r->groups},
                             which == FORWARD);
    float *got = multiply(which, o, a, b, n);
    power p = {0};
    for (size_t s = 0; s < SAMPLES; s++) {
        const size_t i = suite_bits(s, n) % n;
        add(&p, exact(which, o, i), (double)got[i]);
    }
    suite_assert_above(titled("%s, GEMM %d, %zu groups, %zu rows, n %zu, k %zu",
                              moert_format_name(formats[format].format), (int)which, r->groups,
                              r->rows, r->n, r->k),
                       p.signal, p.noise, formats[format].gemm_limit);
    release_since(before);
}

static const row rows[] = {
    {1, 256, 256, 320, {0}, false},       {8, 640, 192, 256, {0}, false},
    {2, 256, 160, 192, {64, 256}, false}, {1, 1024, 1024, 1024, {0}, true},
    {8, 1024, 4096, 1024, {0}, true},     {16, 4096, 1024, 4096, {0}, true},
    {8, 4096, 2048, 2048, {0}, true},
};

TEST(test_the_gemms_of_training_keep_their_signal) {
    set_variable("MOERT_BACKEND", "portable");
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const row *r = &rows[i];
        if (suite_skips(r->slow))
            continue;
        operands o = {.r = r,
                      .x = suite_normal(1, r->rows * r->k, 1.0),
                      .weight = suite_normal(2, r->groups * r->n * r->k, 1.0),
                      .y = suite_normal(3, r->rows * r->n, 1.0)};
        memcpy(o.ends, r->ends, sizeof o.ends);
        if (o.ends[r->groups - 1] == 0)
            suite_split(i, r->rows, r->groups, o.ends);
        for (size_t g = 0; g < r->groups; g++)
            o.weight_ends[g] = (uint32_t)((g + 1) * r->n);
        for (size_t f = 0; f < FORMATS; f++)
            for (kind k = FORWARD; k < KINDS && formats[f].gemm_limit > 0; k++)
                check_gemm(f, k, &o);
        release_owned();
    }
}

TESTS(open_test_device, close_test_device)
