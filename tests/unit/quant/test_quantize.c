// run: check=1,1gpu all=1san
/* Quantizers: published byte vectors with and without a norm, the options of NVFP4, and comparison
 * with an oracle, byte by byte, for hostile data and shapes. */
#include <float.h>

#include "base/dtype.h"
#include "device/device.h"
#include "support/quant/quantize_oracle.h"
#include "support/suite.h"

/* ---- published vectors ---- */

/* Checks the bytes of a row of n values on both backends. */
static void check_row(const moert_quantizer *how, const float *x, size_t n,
                      const unsigned char *scale, const unsigned char *q) {
    const matrix m = {.x = x, .rows = 1, .columns = n};
    for (size_t b = 0; b < BACKENDS; b++) {
        quantized z = quantize(backends[b], how, &m);
        assert_memory_equal(z.scale, scale, z.scale_bytes);
        assert_memory_equal(z.q, q, z.q_bytes);
    }
}

TEST(test_blocks_of_one_value_give_the_published_bytes) {
    const struct {
        uint32_t bits;
        unsigned char ceil_scale, ceil_q, floor_scale, floor_q;
    } cases[] = {
        {0x43E00000, 127, 0x7E, 127, 0x7E}, /* 448 */
        {0x43F00000, 128, 0x77, 127, 0x7E}, /* 480 */
        {0x7F7FFFFF, 247, 0x78, 246, 0x7E}, /* the largest float32 */
        {0x00800000, 0, 0x40, 0, 0x40},     /* 2^-126 */
        {0x40600001, 121, 0x76, 120, 0x7E}, /* just above 3.5 */
        {0x43FFFFFF, 128, 0x78, 127, 0x7E}, /* just below 512 */
        {0x40600000, 120, 0x7E, 120, 0x7E}, /* 3.5 */
        {0x43E10000, 128, 0x76, 127, 0x7E}, /* 450 */
        {0x00000000, 0, 0x00, 0, 0x00},     {0x7FC00000, 255, 0x7F, 255, 0x7F}, /* NaN */
        {0xFFC00000, 255, 0x7F, 255, 0x7F}, {0x7F800000, 254, 0x7E, 247, 0x7E}, /* infinity */
    };
    for (size_t i = 0; i < MOERT_COUNT(cases); i++) {
        float x[32];
        unsigned char up[32], down[32];
        for (size_t k = 0; k < 32; k++)
            x[k] = moert_float_from_bits(cases[i].bits);
        memset(up, cases[i].ceil_q, sizeof up);
        memset(down, cases[i].floor_q, sizeof down);
        check_row(&HOW(.scale_rounding = MOERT_SCALE_RCEIL), x, 32, &cases[i].ceil_scale, up);
        check_row(&HOW(.scale_rounding = MOERT_SCALE_FLOOR), x, 32, &cases[i].floor_scale, down);
    }
}

TEST(test_mxfp8_of_a_ramp_gives_the_published_bytes) {
    const unsigned char scale = 121;
    const unsigned char q[] = {0xec, 0xeb, 0xea, 0xea, 0xe9, 0xe8, 0xe6, 0xe5, 0xe3, 0xe2, 0xe0,
                               0xdd, 0xda, 0xd5, 0xcd, 0x00, 0x4d, 0x55, 0x5a, 0x5d, 0x60, 0x62,
                               0x63, 0x65, 0x66, 0x68, 0x69, 0x6a, 0x6a, 0x6b, 0x6c, 0x77};
    float x[32];
    for (int i = 0; i < 32; i++)
        x[i] = i < 31 ? 0.1f * (float)(i - 15) : 3.75f;
    check_row(&HOW(.format = MOERT_FORMAT_MXFP8_E4M3), x, 32, &scale, q);
}

TEST(test_nvfp4_gives_the_published_bytes_of_each_rule) {
    const unsigned char scale[] = {0x7E, 0x54};
    const unsigned char nearest[] = {0x10, 0x29, 0x3a, 0xc4, 0x55, 0x6e, 0xf7, 0xf7,
                                     0x11, 0x32, 0x44, 0x55, 0x65, 0x66, 0x76, 0x77};
    const unsigned char bridge[] = {0x10, 0x29, 0x3a, 0xc4, 0x54, 0x6d, 0xe6, 0xf7,
                                    0x11, 0x32, 0x44, 0x54, 0x55, 0x66, 0x66, 0x77};
    float x[32] = {0, .5f, -.5f, 1, -1, 1.5f, 2, -2, 2.6f, 3, -3.6f, 4, 5.1f, -5.1f, 6, -6};
    for (int i = 16; i < 32; i++)
        x[i] = (float)(i - 15) / 100.0f;
    for (moert_nvfp4_rule rule = 0; rule <= MOERT_NVFP4_BRIDGE; rule++) {
        const moert_quantizer how = HOW(.format = MOERT_FORMAT_NVFP4, .nvfp4_rule = rule);
        check_row(&how, x, 32, scale, rule == MOERT_NVFP4_BRIDGE ? bridge : nearest);
    }
}

/* A NaN makes its block NaN and does not change the next one; an infinity becomes the largest
 * value. */
TEST(test_special_values_stay_in_their_block) {
    float x[3 * 32];
    unsigned char q[3 * 32] = {[64] = 0xFE}, scale[] = {0xFF, 119, 0xFE};
    for (size_t i = 0; i < 96; i++)
        x[i] = i == 3 ? NAN : i == 64 ? -INFINITY : 1.0f;
    memset(q, 0x7F, 32);
    memset(q + 32, 0x78, 32);
    check_row(&HOW(.axis = MOERT_AXIS_ROW), x, 96, scale, q);
}

/* ---- a norm ---- */

TEST(test_blocks_with_a_norm_have_the_bytes_of_cudnn) {
    const moert_format e4m3 = MOERT_FORMAT_MXFP8_E4M3, e5m2 = MOERT_FORMAT_MXFP8_E5M2,
                       nvfp4 = MOERT_FORMAT_NVFP4;
    /* the block consists of `value` and zeros; `scale` and `q` are the expected scale and first
     * payload byte */
    const struct {
        moert_format format;
        float norm, value;
        unsigned char scale, q;
    } cases[] = {
        {e4m3, 0.01f, 1000.0f, 122, 0x7A},
        {e4m3, 0.01f, 0.0f, 0, 0},
        {e4m3, 0.01f, 6.4134731f, 115, 0x78},
        /* with a norm, the largest E5M2 value is 128 */
        {e5m2, 1.0f, 128.0f, 127, 0x58}, /* 128 / 128 = 2^0 */
        /* scale: 57344 / 128 = 448, rounded up to 2^9; payload: 57344 / 2^9 = 112 */
        {e5m2, 1.0f, 57344.0f, 136, 0x57},
        {e5m2, 0.5f, -57344.0f, 135, 0xD7}, /* 448 * 0.5 = 224, rounded up to 2^8 */
        {e5m2, 1.0f, INFINITY, 254, 0x7B},  /* the largest payload, 57344 */
        /* the reciprocal of the smallest scale is FLT_MAX */
        {e4m3, 1.0f, 0x1p-126f, 0, 0x48}, /* 2^-126 * FLT_MAX = 4 */
        {e4m3, 1.0f, 448 * 0x1p-126f, 1, 0x7E},
        {e4m3, 0x1p-30f, 1.0f, 89, 0x78}, /* 2^-38 / 448 * 512 */
        {e4m3, 0x1p-126f, 448.0f, 1, 0x7E},
        {e4m3, 0x1p-127f, 448.0f, 0, 0x7E}, /* 448 * FLT_MAX saturates */
        /* a norm does not change how NaN and infinity are quantized */
        {e4m3, 0.01f, NAN, 255, 0x7F},
        {e4m3, 0.01f, -INFINITY, 254, 0xFE},
        {nvfp4, 0.01f, NAN, 0x7F, 0x77},
        {nvfp4, 1.0f, INFINITY, 0x7E, 0x07},
        /* a norm that is not positive gives NaN */
        {e4m3, -1.0f, 1.0f, 255, 0x7F},
        {e4m3, NAN, 1.0f, 255, 0x7F},
        {e4m3, 0.0f, 1.0f, 255, 0x7F},
        {nvfp4, -1.0f, 1.0f, 0x7F, 0x77},
        {nvfp4, NAN, 1.0f, 0x7F, 0x77},
        {nvfp4, 0.0f, 1.0f, 0x7F, 0x77},
        /* NVFP4's scales follow the formula of moert/quantize.h with a norm */
        {nvfp4, 1.0f, 6.0f, 0x38, 0x07},           /* scale 1 */
        {nvfp4, 4.0f, -6.0f, 0x48, 0x0F},          /* scale 4 */
        {nvfp4, 1.0f, 6000.0f, 0x7E, 0x07},        /* scale and payload saturate */
        {nvfp4, 1.0f, 6.0f * 0x1p-9f, 0x01, 0x07}, /* the smallest scale */
        {nvfp4, 1.0f, 7.0f, 0x39, 0x07},           /* 7 / 6 rounds to 1.125; 7 / 1.125 saturates */
        {nvfp4, 1.0f, -6.0f * 0x1p-11f, 0x00, 0x00}, /* scale 0 makes payload 0 */
    };
    for (size_t i = 0; i < BACKENDS * MOERT_COUNT(cases); i++) {
        const float x[32] = {[0] = cases[i / BACKENDS].value};
        const moert_format format = cases[i / BACKENDS].format;
        const matrix m = {.x = x, .rows = 1, .columns = moert_format_block(format)};
        quantized z = quantize_by(&cases[i / BACKENDS].norm, backends[i % BACKENDS],
                                  &HOW(.format = format), &m);
        if (z.scale[0] != cases[i / BACKENDS].scale || z.q[0] != cases[i / BACKENDS].q)
            fail_msg("case %zu has %02x, %02x", i / BACKENDS, z.scale[0], z.q[0]);
    }
}

/* ---- NVFP4's options ---- */

TEST(test_the_caller_may_give_the_global_scale) {
    const float given = 12.0f / 2688.0f, x[3 * 16] = {[0] = 6.0f, [16] = -12.0f, [32] = 100.0f};
    /* scales: 6 / 6 / given = 224; 448; a larger value saturates at 448 */
    const unsigned char want[] = {0x76, 0x7E, 0x7E};
    for (size_t b = 0; b < BACKENDS; b++) {
        moert_quantize op = quantize_op(&HOW(.format = MOERT_FORMAT_NVFP4), 3, 16);
        op.x = upload(x, sizeof x);
        op.global = upload(&given, sizeof given);
        op.q = upload(x, 3 * 16 / 2);
        op.scale = upload(x, sizeof want);
        set_variable("MOERT_BACKEND", backends[b]);
        ASSERT_OK(moert_quantize_run(&op));
        assert_memory_equal(download(op.scale, sizeof want), want, sizeof want);
    }
}

TEST(test_stochastic_rounding_follows_the_seed_and_is_unbiased) {
    enum { M = 256, N = 64 };
    float *x = test_alloc(M * N * sizeof *x);
    for (size_t i = 0; i < M * N; i++)
        x[i] = i % 16 == 0 ? 6.0f : 2.25f;
    const matrix m = {x, M, N, NULL, 0};
    moert_quantizer how = HOW(.format = MOERT_FORMAT_NVFP4, .rounding = MOERT_ROUNDING_STOCHASTIC);
    quantized first = quantize("portable", &how, &m), again = quantize("portable", &how, &m);
    how.seed = 1;
    quantized other = quantize("portable", &how, &m);
    assert_same_quantized("the same seed", &again, &first);
    assert_true(memcmp(other.q, first.q, first.q_bytes) != 0);
    double sum = 0;
    for (size_t i = 0; i < M * N; i++)
        sum += i % 16 == 0 ? 0 : (double)first.back[i];
    assert_within(sum / (M * N * 15 / 16), 2.25, 0.02);
}

/* ---- matrices ---- */

/* The first IN_GPU_FORM quantizers also run in GPU form. The other quantizers do not, because a
 * GPU kernel takes a second to compile. */
enum { IN_GPU_FORM = 5 };
static const moert_quantizer hows[] = {
    {.format = MOERT_FORMAT_MXFP8_E5M2, .scale_rounding = MOERT_SCALE_FLOOR},
    {.format = MOERT_FORMAT_MXFP4},
    {.format = MOERT_FORMAT_NVFP4, .axis = MOERT_AXIS_COLUMN, .hadamard = true, .transposed = true},
    {.format = MOERT_FORMAT_FP8_BLOCK, .axis = MOERT_AXIS_TILE},
    {.format = MOERT_FORMAT_NVFP4, .nvfp4_rule = MOERT_NVFP4_TORCHAO, .group_scales = true},
    {.format = MOERT_FORMAT_MXFP8_E4M3},
    {.format = MOERT_FORMAT_MXFP8_E4M3, .axis = MOERT_AXIS_COLUMN},
    {.format = MOERT_FORMAT_MXFP8_E4M3, .axis = MOERT_AXIS_COLUMN, .transposed = true},
    {.format = MOERT_FORMAT_MXFP8_E4M3, .axis = MOERT_AXIS_TILE, .scale_rounding = 1},
    {.format = MOERT_FORMAT_MXFP8_E5M2, .axis = MOERT_AXIS_COLUMN},
    {.format = MOERT_FORMAT_MXFP4, .scale_rounding = MOERT_SCALE_FLOOR},
    {.format = MOERT_FORMAT_MXFP4, .axis = MOERT_AXIS_COLUMN, .rounding = MOERT_ROUNDING_BRIDGE},
    {.format = MOERT_FORMAT_MXFP4, .axis = MOERT_AXIS_TILE, .rounding = MOERT_ROUNDING_STOCHASTIC},
    {.format = MOERT_FORMAT_NVFP4},
    {.format = MOERT_FORMAT_NVFP4, .nvfp4_rule = MOERT_NVFP4_BRIDGE},
    {.format = MOERT_FORMAT_NVFP4, .rounding = MOERT_ROUNDING_STOCHASTIC, .seed = 1ull << 40},
    {.format = MOERT_FORMAT_NVFP4, .axis = MOERT_AXIS_TILE},
    {.format = MOERT_FORMAT_NVFP4, .axis = MOERT_AXIS_COLUMN, .group_scales = true},
    {.format = MOERT_FORMAT_NVFP4,
     .axis = MOERT_AXIS_COLUMN,
     .hadamard = true,
     .group_scales = true,
     .rounding = MOERT_ROUNDING_STOCHASTIC,
     .seed = 3},
    {.format = MOERT_FORMAT_FP8_BLOCK},
    {.format = MOERT_FORMAT_FP8_BLOCK, .axis = MOERT_AXIS_COLUMN},
    {.format = MOERT_FORMAT_FP8_BLOCK, .axis = MOERT_AXIS_COLUMN, .transposed = true},
};
enum { HOWS = MOERT_COUNT(hows) };

enum { NORMAL, WIDE, SUBNORMAL, SPECIAL, ZERO, SMALL, LARGE, EXACT, DATA };

/* Returns n values of the given kind of test data. */
static float *make_data(int kind, size_t n) {
    static const float special[] = {INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 0, NAN, -NAN};
    const float *normal = suite_normal(kind, n, 1.0);
    float *x = random_floats(n, 1.0f, (uint64_t)kind);
    for (size_t i = 0; i < n; i++) {
        const int spread = (int)(i * 2654435761u >> 7 & 0xFF) - 127, by_block = (int)(i / 32 % 7);
        const float values[DATA] = {
            [NORMAL] = normal[i],
            [WIDE] = ldexpf(x[i], spread), /* magnitudes from subnormal numbers to 2^128 */
            [SUBNORMAL] = ldexpf(x[i], -127 - (int)(i % 20)),
            [SPECIAL] = i % 131 == 0 ? special[i / 131 % (n % 2 == 0 ? 7 : 4)] : x[i],
            [ZERO] = i % 3 == 0 ? -0.0f : 0.0f,
            /* blocks of zeros and blocks of tiny values, which each rule of NVFP4 treats
             * differently */
            [SMALL] = i / 16 % 9 == 0 ? 0.0f : ldexpf(x[i], -4 * by_block - 4),
            [LARGE] = ldexpf(x[i], 100 - by_block),
            /* the rotation of these values has exact sums, as the oracle requires */
            [EXACT] = rintf(128.0f * x[i]) / 32.0f,
        };
        x[i] = values[kind];
    }
    return x;
}

/* Quantizes on both backends, with `norm` unless it is NULL, and checks that they agree. Returns
 * the result. */
static quantized check(const char *what, const moert_quantizer *how, const float *norm,
                       const matrix *m, bool has_oracle) {
    quantized z[BACKENDS];
    for (size_t b = 0; b < BACKENDS; b++)
        z[b] =
            norm != NULL ? quantize_by(norm, backends[b], how, m) : quantize(backends[b], how, m);
    assert_same_quantized(what, &z[1], &z[0]);
    if (has_oracle)
        oracle_check_quantized(what, how, norm, m, &z[0], SIZE_MAX - 1);
    return z[0];
}

/* Checks the signal-to-noise ratio against torchao's limits in decibel, one per format. The limit
 * for FP8 blocks is moert's. */
static void check_noise(const char *what, moert_format format, const matrix *m,
                        const quantized *z) {
    static const double limits[] = {18.0, 13.0, 13.0, 8.0, 18.0};
    double signal = 0.0, noise = 0.0;
    for (size_t i = 0; i < z->elements; i++) {
        signal += (double)m->x[i] * (double)m->x[i];
        noise += pow((double)z->back[i] - (double)m->x[i], 2.0);
    }
    suite_assert_above(what, signal, noise, limits[format]);
}

TEST(test_quantizers_give_the_bytes_of_the_oracle_on_hostile_data_and_shapes) {
    /* number of moert's own shapes; the later shapes are torchao's, for normal data */
    enum { OURS = 6 };
    static const uint32_t ends[] = {0, 3, 3, 20, 37, 133, 133};
    static const float norms[] = {1.0f, 0.01f, 3.7f, 2688.0f / 11.0f};
    const matrix shapes[] = {
        {.rows = 33, .columns = 31},
        {.rows = 1, .columns = 1},
        {.rows = 40, .columns = 96},
        {.rows = 140, .columns = 147, .ends = ends, .groups = 7},
        {.rows = 133, .columns = 1040, .ends = ends, .groups = 7},
        {.rows = 0, .columns = 16},
        {.rows = 2, .columns = 32},
        {.rows = 32, .columns = 64},
        {.rows = 33, .columns = 96},
        {.rows = 128, .columns = 256},
        {.rows = 1, .columns = 1024},
    };
    const bool gpu_form = moert_device_describe(test_device)->gpu_form;
    for (size_t i = 0; i < HOWS * DATA * MOERT_COUNT(shapes); i++) {
        const size_t before = owned_count();
        if (gpu_form && i % HOWS >= IN_GPU_FORM)
            continue;
        moert_quantizer how = hows[i % HOWS];
        const int kind = (int)(i / HOWS % DATA);
        const char *what =
            titled("quantizer %zu, data %d, shape %zu", i % HOWS, kind, i / HOWS / DATA);
        const bool ours = i / HOWS / DATA < OURS;
        matrix m = shapes[i / HOWS / DATA];
        /* shapes of more than 1000 columns test several strips of the kernel; one kind of data is
         * enough for them */
        if (kind != NORMAL && (!ours || m.columns > 1000))
            continue;
        m.x = make_data(kind, m.rows * m.columns);
        how.size = sizeof how;
        const quantized z = check(what, &how, NULL, &m,
                                  kind != SPECIAL && how.rounding != MOERT_ROUNDING_STOCHASTIC &&
                                      (!how.hadamard || kind == EXACT));
        if (!ours && !how.hadamard)
            check_noise(what, how.format, &m, &z);
        how.hadamard = how.group_scales = false;
        how.rounding = MOERT_ROUNDING_AUTO;
        if (how.format != MOERT_FORMAT_FP8_BLOCK && ours && !gpu_form)
            check(titled("%s, norm", what), &how, &norms[i % 4], &m, kind != SPECIAL);
        release_since(before);
    }
}

TESTS(open_test_device, close_test_device)
