// run: check=1,1gpu all=1san
/* Quantizers: published byte vectors, without and with a norm, errors of dequantized values, the
 * options of NVFP4, random matrices with a norm against an oracle, refusals. */
#include "base/dtype.h"
#include "base/memory.h"
#include "support/quant/quantize_oracle.h"

/* ---- published vectors ---- */

/* Checks the bytes of a row of n values on both backends, with a norm unless it is 0. */
static void check_normed_row(const moert_quantizer *how, float norm, const float *x, size_t n,
                             const unsigned char *scale, const unsigned char *q) {
    const matrix m = {.x = x, .rows = 1, .columns = n};
    for (size_t b = 0; b < BACKENDS; b++) {
        quantized z = norm == 0.0f ? quantize(backends[b], how, &m)
                                   : quantize_by(&norm, backends[b], how, &m);
        assert_memory_equal(z.scale, scale, z.scale_bytes);
        assert_memory_equal(z.q, q, z.q_bytes);
    }
}

static void check_row(const moert_quantizer *how, const float *x, size_t n,
                      const unsigned char *scale, const unsigned char *q) {
    check_normed_row(how, 0.0f, x, n, scale, q);
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
        /* a norm of one over the global scale; it leaves no rule a choice */
        check_normed_row(&how, 2688.0f / 6.0f, x, 32, scale, nearest);
    }
}

TEST(test_nvfp4_treats_tiny_blocks_by_each_rule) {
    const float x[32] = {[0] = 2688, [16] = 0.010f, [17] = -0.004f};
    const struct {
        moert_nvfp4_rule rule;
        unsigned char scale[2], q[16];
    } cases[] = {
        {MOERT_NVFP4_TE, {0x7E, 0x01}, {[0] = 0x07, [8] = 0xc7}},
        {MOERT_NVFP4_TORCHAO, {0x7E, 0x08}, {[0] = 0x07, [8] = 0x91}},
        {MOERT_NVFP4_BRIDGE, {0x7E, 0x00}, {[0] = 0x07}},
    };
    for (size_t i = 0; i < 3; i++)
        check_row(&HOW(.format = MOERT_FORMAT_NVFP4, .nvfp4_rule = cases[i].rule), x, 32,
                  cases[i].scale, cases[i].q);
}

TEST(test_zeros_and_what_becomes_zero_keep_their_sign) {
    const float x[128] = {448.0f, -0.0f, 0.0f, -0x1p-30f, 0x1p-30f, -1.0f};
    unsigned char mx_scale[] = {127, 0, 0, 0}, q[128] = {0x7E, 0x80, 0x00, 0x80, 0x00, 0xB8};
    const float scale = 1.0f;
    check_row(&HOW(.format = MOERT_FORMAT_MXFP8_E4M3), x, 128, mx_scale, q);
    check_row(&HOW(.format = MOERT_FORMAT_FP8_BLOCK), x, 128, (const unsigned char *)&scale, q);
}

/* ---- a norm ---- */

TEST(test_blocks_with_a_norm_have_the_bytes_of_cudnn) {
    const moert_format e4m3 = MOERT_FORMAT_MXFP8_E4M3, e5m2 = MOERT_FORMAT_MXFP8_E5M2,
                       nvfp4 = MOERT_FORMAT_NVFP4;
    /* the scale and first payload byte of a block of `value` and zeros */
    const struct {
        moert_format format;
        float norm, value;
        unsigned char scale, q;
    } cases[] = {
        {e4m3, 0.01f, 1000.0f, 122, 0x7A},
        {e4m3, 0.01f, 0.0f, 0, 0},
        {e4m3, 0.01f, 6.4134731f, 115, 0x78},
        /* E5M2 ends at 128 */
        {e5m2, 1.0f, 128.0f, 127, 0x58},    /* 128 / 128 = 2^0 */
        {e5m2, 1.0f, 57344.0f, 136, 0x57},  /* 57344 / 128 = 448, up to 2^9; 57344 / 2^9 = 112 */
        {e5m2, 0.5f, -57344.0f, 135, 0xD7}, /* 448 * 0.5 = 224, up to 2^8 */
        {e5m2, 1.0f, INFINITY, 254, 0x7B},  /* the largest payload, 57344 */
        /* the smallest scale multiplies by the largest number */
        {e4m3, 1.0f, 0x1p-126f, 0, 0x48}, /* 2^-126 * FLT_MAX = 4 */
        {e4m3, 1.0f, 448 * 0x1p-126f, 1, 0x7E},
        {e4m3, 0x1p-30f, 1.0f, 89, 0x78}, /* 2^-38 / 448 * 512 */
        {e4m3, 0x1p-126f, 448.0f, 1, 0x7E},
        {e4m3, 0x1p-127f, 448.0f, 0, 0x7E}, /* 448 * FLT_MAX saturates */
        /* NaN and infinity are treated as without a norm */
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
        /* scales of NVFP4 follow the formula */
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

TEST(test_the_worked_example_has_a_norm_and_comes_back) {
    const float norm = 0.01f, x[32] = {[5] = 1000.0f, [6] = -500.0f};
    const matrix m = {.x = x, .rows = 1, .columns = 32};
    for (size_t b = 0; b < BACKENDS; b++) {
        quantized z = quantize_by(&norm, backends[b], &HOW(.format = 0), &m);
        assert_within((double)(z.back[5] / norm), 1000.0, 1e-3);
        assert_within((double)(z.back[6] / norm), -500.0, 1e-3);
        assert_true(z.back[0] == 0.0f);
    }
}

TEST(test_random_matrices_with_a_norm_have_the_bytes_of_the_oracle) {
    if (moert_device_describe(test_device)->gpu_form)
        SKIP("takes minutes in GPU form; the table of blocks runs there");
    enum { M = 70, N = 83, POWERS = 4 };
    const uint32_t ends[] = {33, 33, 65, M};
    const float norms[] = {1.0f, 0.01f, 3.7f, 2688.0f / 11.0f};
    /* values near 1; scales of 2^-127; large values; NVFP4 scales of 0 */
    const int powers[POWERS] = {0, -128, 100, -6};
    for (size_t i = 0; i < 4 * 4 * POWERS * 2; i++) {
        const float norm = norms[i % 4];
        const int power = powers[i / 16 % POWERS];
        const moert_quantizer how =
            HOW(.format = i / 4 % 4, .axis = i / 64 == 0 ? MOERT_AXIS_ROW : MOERT_AXIS_COLUMN,
                .scale_rounding = MOERT_SCALE_FLOOR);
        float *x = random_floats((size_t)M * N, 4.0f, i);
        for (size_t k = 0; k < M * N; k++)
            x[k] = k / 16 % 9 == 0 ? 0.0f : ldexpf(x[k], power - (int)(k / 32 % 7));
        const matrix m = {x, M, N, ends, 4};
        quantized want = quantize_by(&norm, "reference", &how, &m);
        quantized got = quantize_by(&norm, "portable", &how, &m);
        const char *what = titled("case %zu", i);
        oracle_check_quantized(what, &how, &norm, &m, &want, SIZE_MAX - 1);
        assert_same_quantized(what, &got, &want);
    }
}

/* ---- values ---- */

TEST(test_values_come_back_within_half_a_step) {
    enum { M = 64, N = 256 };
    /* tolerance relative to the block's amax: half a step of the largest binade, plus the rounding
     * of the scale */
    const double tolerance[] = {1 / 16.0, 1 / 8.0, 1 / 3.0, 0.25, 1 / 16.0};
    float *x = random_floats(M * N, 5.0f, 3);
    const matrix m = {x, M, N, NULL, 0};
    for (size_t f = 0; f <= MOERT_FORMAT_FP8_BLOCK; f++)
        for (size_t b = 0; b < BACKENDS; b++) {
            quantized z = quantize(backends[b], &HOW(.format = f), &m);
            for (size_t i = 0; i < M * N; i++)
                assert_within((double)z.back[i], (double)x[i], 5.0 * tolerance[f]);
        }
}

TEST(test_fp8_blocks_are_scaled_to_448) {
    enum { M = 130, N = 129 };
    float *x = random_floats(M * N, 5.0f, 4);
    x[0] = -896.0f;
    const matrix m = {x, M, N, NULL, 0};
    quantized z =
        quantize("portable", &HOW(.format = MOERT_FORMAT_FP8_BLOCK, .axis = MOERT_AXIS_TILE), &m);
    float scale[4];
    assert_int_equal(z.scale_bytes, sizeof scale);
    memcpy(scale, z.scale, sizeof scale);
    assert_true(scale[0] == 2.0f && z.q[0] == 0xFE);
    float amax = 0;
    for (size_t r = 0; r < 128; r++)
        amax = fmaxf(amax, fabsf(x[r * N + 128]));
    assert_true(scale[1] == amax / 448.0f);
}

TEST(test_gpt_oss_blocks_are_mxfp4_along_rows) {
    /* blocks[1,1,1,16], scales[1,1,1]: low halves first, value * 2^(scale - 127) */
    unsigned char blocks[16], scale = 125;
    float want[32];
    for (unsigned i = 0; i < 16; i++) {
        blocks[i] = (unsigned char)(i | (15 - i) << 4);
        want[2 * i] = moert_dtype_decode(MOERT_DTYPE_E2M1, i) / 4;
        want[2 * i + 1] = moert_dtype_decode(MOERT_DTYPE_E2M1, 15 - i) / 4;
    }
    for (size_t b = 0; b < BACKENDS; b++) {
        set_variable("MOERT_BACKEND", backends[b]);
        moert_quantize op = quantize_op(&HOW(.format = MOERT_FORMAT_MXFP4), 1, 32);
        op.x = unset_floats(32);
        op.q = upload(blocks, sizeof blocks);
        op.scale = upload(&scale, 1);
        ASSERT_OK(moert_dequantize_run(&op));
        float *got = download(op.x, sizeof want);
        assert_same_bits("x", got, want, 32);
    }
}

/* ---- NVFP4's options ---- */

TEST(test_global_scales_are_per_tensor_or_group_and_may_be_given) {
    enum { M = 6, N = 16 };
    const uint32_t ends[] = {2, 2, 5};
    float x[M * N] = {[0] = 6.0f, [2 * N] = -12.0f, [5 * N] = 100.0f};
    const matrix m = {x, M, N, ends, 3};
    for (size_t b = 0; b < BACKENDS; b++) {
        quantized one = quantize(backends[b], &HOW(.format = MOERT_FORMAT_NVFP4), &m);
        assert_true(one.amax[0] == 12.0f && one.global[0] == 12.0f / 2688.0f);
        quantized each =
            quantize(backends[b],
                     &HOW(.format = MOERT_FORMAT_NVFP4, .group_scales = true, .nvfp4_rule = 1), &m);
        const float want[] = {6.0f / 2688.0f, 0, 12.0f / 2688.0f};
        assert_same_bits("global", each.global, want, 3);

        /* the caller gives the global scale */
        const float given = 12.0f / 2688.0f;
        moert_quantize op = quantize_op(&HOW(.format = MOERT_FORMAT_NVFP4), M, N);
        op.x = upload(x, sizeof x);
        op.global = upload(&given, sizeof given);
        op.q = upload(x, M * N / 2);
        op.scale = upload(x, M);
        unsigned char scale[M];
        ASSERT_OK(moert_quantize_run(&op));
        download_into(op.scale, scale, sizeof scale);
        assert_int_equal(scale[2], 0x7E); /* 12 / 6 / given = 448 */
        assert_int_equal(scale[0], 0x76); /* 6 / 6 / given = 224 */
        assert_int_equal(scale[5], 0x7E); /* the scale saturates at 448 */
    }
}

TEST(test_a_rotation_spreads_whole_blocks_and_keeps_partial_ones) {
    enum { M = 20, N = 16 };
    float x[M * N] = {0};
    x[3 * N] = 8.0f;  /* the rotation spreads row 3 over its block: all magnitudes are 2 */
    x[17 * N] = 1.0f; /* row 17 is in the partial block, which is not rotated */
    const matrix m = {x, M, N, NULL, 0};
    const moert_quantizer how =
        HOW(.format = MOERT_FORMAT_NVFP4, .axis = MOERT_AXIS_COLUMN, .hadamard = true);
    for (size_t b = 0; b < BACKENDS; b++) {
        quantized z = quantize(backends[b], &how, &m);
        assert_true(z.amax[0] == 2.0f);
        for (size_t r = 0; r < 16; r++) {
            const int sign = __builtin_popcount((unsigned)r & 3) % 2 == 0 ? -1 : 1;
            assert_within((double)z.back[r * N], 2.0 * sign, 1e-6);
        }
        assert_within((double)z.back[17 * N], 1.0, 1e-6);
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

/* ---- errors ---- */

/* Checks that `good` with one change is refused with this text. */
#define REFUSED(status, text, change)                                                              \
    do {                                                                                           \
        moert_quantize op = good;                                                                  \
        change;                                                                                    \
        ASSERT_FAILS(moert_quantize_run(&op), (status), (text));                                   \
    } while (0)

TEST(test_wrong_arguments_are_named) {
    const float x[64] = {0};
    const moert_status usage = MOERT_ERROR_USAGE;
    moert_quantize good = quantize_op(&HOW(.axis = 0), 1, 32);
    good.x = good.q = good.scale = upload(x, sizeof x);
    moert_quantize other = good;
    other.size = 7;
    ASSERT_FAILS(moert_quantize_amax(&other), usage, "MOERT_QUANTIZE_INIT");
    ASSERT_FAILS(moert_dequantize_run(&other), usage, "MOERT_QUANTIZE_INIT");
    REFUSED(usage, "size is 7", op.size = 7);
    REFUSED(usage, "x has 384 bytes, too few for 1000", op.groups.rows = 1000);
    REFUSED(usage, "q[1,32] is missing", op.q = NULL);
    REFUSED(usage, "size is 3", op.how.size = 3);
    REFUSED(usage, "format of a quantizer is 17", op.how.format = 17);
    REFUSED(usage, "hadamard goes with nvfp4", op.how.hadamard = true);
    REFUSED(usage, "transposed goes with", op.how.transposed = true);
    REFUSED(usage, "not with mxfp8-e4m3", op.how.rounding = MOERT_ROUNDING_STOCHASTIC);
    REFUSED(usage, "32 columns are no multiple", op.x_runs = 5);
    REFUSED(usage, "global scale[1,1] is missing", op.how.format = MOERT_FORMAT_NVFP4);
    good.norm = good.x;
    REFUSED(usage, "not with fp8-block", op.how.format = MOERT_FORMAT_FP8_BLOCK);
    REFUSED(usage, "norm has 2 bytes", op.norm = test_buffer(2));
    REFUSED(MOERT_ERROR_UNSUPPORTED, "columns of a quantized matrix",
            (op.how.format = MOERT_FORMAT_NVFP4, op.columns = (size_t)1 << 31));
}

TESTS(open_test_device, close_test_device)
