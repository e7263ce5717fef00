// run: check=1 all=1san
/* Quantizers with a norm: worked examples, random matrices against an oracle, errors. */
#include "support/quant/quantize_oracle.h"

/* ---- examples ---- */

/* Checks the scale and first payload byte of a block whose first element is `value` and whose other
 * elements are 0. */
static void check_block(moert_format format, float norm, float value, unsigned char scale,
                        unsigned char q) {
    const float x[32] = {[0] = value};
    const matrix m = {.x = x, .rows = 1, .columns = moert_format_block(format)};
    for (size_t b = 0; b < BACKENDS; b++) {
        quantized z = quantize_by(&norm, backends[b], &HOW(.format = format), &m);
        assert_int_equal(z.scale[0], scale);
        assert_int_equal(z.q[0], q);
    }
}

TEST(test_the_worked_example_has_its_bytes_and_comes_back) {
    const float norm = 0.01f, x[32] = {[5] = 1000.0f, [6] = -500.0f};
    const matrix m = {.x = x, .rows = 1, .columns = 32};
    check_block(MOERT_FORMAT_MXFP8_E4M3, norm, 1000.0f, 122, 0x7A);
    check_block(MOERT_FORMAT_MXFP8_E4M3, norm, 0.0f, 0, 0);
    check_block(MOERT_FORMAT_MXFP8_E4M3, norm, 6.4134731f, 115, 0x78);
    for (size_t b = 0; b < BACKENDS; b++) {
        quantized z = quantize_by(&norm, backends[b], &HOW(.format = 0), &m);
        assert_within((double)(z.back[5] / norm), 1000.0, 1e-3);
        assert_within((double)(z.back[6] / norm), -500.0, 1e-3);
        assert_true(z.back[0] == 0.0f);
    }
}

TEST(test_e5m2_ends_at_128) {
    check_block(MOERT_FORMAT_MXFP8_E5M2, 1.0f, 128.0f, 127, 0x58); /* 128 / 128 = 2^0 */
    /* 57344 / 128 = 448, rounded up to 2^9; 57344 / 2^9 = 112 */
    check_block(MOERT_FORMAT_MXFP8_E5M2, 1.0f, 57344.0f, 136, 0x57);
    /* 448 * 0.5 = 224, rounded up to 2^8 */
    check_block(MOERT_FORMAT_MXFP8_E5M2, 0.5f, -57344.0f, 135, 0xD7);
    /* the largest payload, 57344 */
    check_block(MOERT_FORMAT_MXFP8_E5M2, 1.0f, INFINITY, 254, 0x7B);
}

TEST(test_the_smallest_scale_multiplies_by_the_largest_number) {
    check_block(MOERT_FORMAT_MXFP8_E4M3, 1.0f, 0x1p-126f, 0, 0x48); /* 2^-126 * FLT_MAX = 4 */
    check_block(MOERT_FORMAT_MXFP8_E4M3, 1.0f, 448 * 0x1p-126f, 1, 0x7E);
    check_block(MOERT_FORMAT_MXFP8_E4M3, 0x1p-30f, 1.0f, 89, 0x78); /* 2^-38 / 448 * 512 */
    check_block(MOERT_FORMAT_MXFP8_E4M3, 0x1p-126f, 448.0f, 1, 0x7E);
    check_block(MOERT_FORMAT_MXFP8_E4M3, 0x1p-127f, 448.0f, 0, 0x7E); /* 448 * FLT_MAX saturates */
}

TEST(test_nan_and_infinity_are_treated_as_without_a_norm) {
    const float wrong[] = {0.0f, -1.0f, NAN};
    check_block(MOERT_FORMAT_MXFP8_E4M3, 0.01f, NAN, 255, 0x7F);
    check_block(MOERT_FORMAT_MXFP8_E4M3, 0.01f, -INFINITY, 254, 0xFE);
    check_block(MOERT_FORMAT_NVFP4, 0.01f, NAN, 0x7F, 0x77);
    check_block(MOERT_FORMAT_NVFP4, 1.0f, INFINITY, 0x7E, 0x07);
    for (size_t i = 0; i < 3; i++) {
        check_block(MOERT_FORMAT_MXFP8_E4M3, wrong[i], 1.0f, 255, 0x7F);
        check_block(MOERT_FORMAT_NVFP4, wrong[i], 1.0f, 0x7F, 0x77);
    }
}

/* ---- NVFP4 ---- */

TEST(test_nvfp4_with_one_over_the_global_scale_has_the_published_bytes) {
    const unsigned char scale[] = {0x7E, 0x54}; /* 448, 12 */
    const unsigned char q[] = {0x10, 0x29, 0x3a, 0xc4, 0x55, 0x6e, 0xf7, 0xf7,
                               0x11, 0x32, 0x44, 0x55, 0x65, 0x66, 0x76, 0x77};
    float x[32] = {0, .5f, -.5f, 1, -1, 1.5f, 2, -2, 2.6f, 3, -3.6f, 4, 5.1f, -5.1f, 6, -6};
    for (int i = 16; i < 32; i++)
        x[i] = (float)(i - 15) / 100.0f;
    const matrix m = {.x = x, .rows = 1, .columns = 32};
    const float norm = 2688.0f / 6.0f;
    for (size_t b = 0; b < BACKENDS; b++)
        for (moert_nvfp4_rule rule = 0; rule <= MOERT_NVFP4_BRIDGE; rule++) {
            const moert_quantizer how = HOW(.format = MOERT_FORMAT_NVFP4, .nvfp4_rule = rule);
            quantized z = quantize_by(&norm, backends[b], &how, &m);
            assert_memory_equal(z.scale, scale, sizeof scale);
            assert_memory_equal(z.q, q, sizeof q);
        }
}

TEST(test_nvfp4_scales_follow_the_formula) {
    check_block(MOERT_FORMAT_NVFP4, 1.0f, 6.0f, 0x38, 0x07);    /* scale 1 */
    check_block(MOERT_FORMAT_NVFP4, 4.0f, -6.0f, 0x48, 0x0F);   /* scale 4 */
    check_block(MOERT_FORMAT_NVFP4, 1.0f, 6000.0f, 0x7E, 0x07); /* scale and payload saturate */
    check_block(MOERT_FORMAT_NVFP4, 1.0f, 6.0f * 0x1p-9f, 0x01, 0x07); /* the smallest scale */
    /* 7 / 6 rounds to scale 1.125; 7 / 1.125 saturates */
    check_block(MOERT_FORMAT_NVFP4, 1.0f, 7.0f, 0x39, 0x07);
    /* scale 0 makes payload 0 */
    check_block(MOERT_FORMAT_NVFP4, 1.0f, -6.0f * 0x1p-11f, 0x00, 0x00);
}

/* ---- an oracle ---- */

TEST(test_random_matrices_have_the_bytes_of_the_oracle) {
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

/* ---- refusals ---- */

TEST(test_a_norm_needs_a_buffer_and_scales_of_one_byte) {
    const float x[64] = {0};
    moert_quantize op = quantize_op(&HOW(.format = MOERT_FORMAT_FP8_BLOCK), 1, 32);
    op.x = op.q = op.scale = op.norm = upload(x, sizeof x);
    ASSERT_FAILS(moert_quantize_run(&op), MOERT_ERROR_USAGE, "not with fp8-block");
    op.how.format = MOERT_FORMAT_MXFP8_E4M3;
    op.norm = test_buffer(2);
    ASSERT_FAILS(moert_quantize_run(&op), MOERT_ERROR_USAGE, "norm has 2 bytes");
}

TESTS(open_test_device, close_test_device)
