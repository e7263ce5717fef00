// run: np=1 sanitize=1
/* Quantisers with a norm: worked examples, an oracle that searches the codes, what is refused. */
#include <float.h>

#include "base/number.h"
#include "support/quant/quantized.h"

#define HOW(...) ((moert_quantizer){.size = sizeof(moert_quantizer), __VA_ARGS__})

static const char *const backends[] = {"reference", "portable"};
enum { BACKENDS = 2 };

/* ---- examples ---- */

/* One block whose first element is `value` and whose others are 0. */
static void check_block(moert_format format, float norm, float value, unsigned char scale,
                        unsigned char q) {
    const float x[32] = {[0] = value};
    const matrix m = {.x = x, .rows = 1, .columns = moert_format_block(format)};
    for (size_t b = 0; b < BACKENDS; b++) {
        quantized z = quantize_normed(backends[b], &HOW(.format = format), &m, norm);
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
        quantized z = quantize_normed(backends[b], &HOW(.format = 0), &m, norm);
        assert_within((double)(z.back[5] / norm), 1000.0, 1e-3);
        assert_within((double)(z.back[6] / norm), -500.0, 1e-3);
        assert_true(z.back[0] == 0.0f);
    }
}

TEST(test_e5m2_ends_at_128) {
    check_block(MOERT_FORMAT_MXFP8_E5M2, 1.0f, 128.0f, 127, 0x58);    /* 128 / 128 = 2^0 */
    check_block(MOERT_FORMAT_MXFP8_E5M2, 1.0f, 57344.0f, 136, 0x57);  /* 448 -> 2^9; 112 */
    check_block(MOERT_FORMAT_MXFP8_E5M2, 0.5f, -57344.0f, 135, 0xD7); /* 224 -> 2^8 */
    check_block(MOERT_FORMAT_MXFP8_E5M2, 1.0f, INFINITY, 254, 0x7B);  /* at most 57344 */
}

TEST(test_the_smallest_scale_multiplies_by_the_largest_number) {
    check_block(MOERT_FORMAT_MXFP8_E4M3, 1.0f, 0x1p-126f, 0, 0x48); /* 2^-126 * FLT_MAX = 4 */
    check_block(MOERT_FORMAT_MXFP8_E4M3, 1.0f, 448 * 0x1p-126f, 1, 0x7E);
    check_block(MOERT_FORMAT_MXFP8_E4M3, 0x1p-30f, 1.0f, 89, 0x78); /* 2^-38 / 448 * 512 */
    check_block(MOERT_FORMAT_MXFP8_E4M3, 0x1p-126f, 448.0f, 1, 0x7E);
    check_block(MOERT_FORMAT_MXFP8_E4M3, 0x1p-127f, 448.0f, 0, 0x7E); /* 448 FLT_MAX saturates */
}

TEST(test_nan_and_infinity_stay_as_without_a_norm) {
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
    for (size_t b = 0; b < BACKENDS; b++)
        for (moert_nvfp4_rule rule = 0; rule <= MOERT_NVFP4_BRIDGE; rule++) {
            const moert_quantizer how = HOW(.format = MOERT_FORMAT_NVFP4, .nvfp4_rule = rule);
            quantized z = quantize_normed(backends[b], &how, &m, 2688.0f / 6.0f);
            assert_memory_equal(z.scale, scale, sizeof scale);
            assert_memory_equal(z.q, q, sizeof q);
        }
}

TEST(test_nvfp4_scales_follow_the_formula) {
    check_block(MOERT_FORMAT_NVFP4, 1.0f, 6.0f, 0x38, 0x07);             /* scale 1 */
    check_block(MOERT_FORMAT_NVFP4, 4.0f, -6.0f, 0x48, 0x0F);            /* scale 4 */
    check_block(MOERT_FORMAT_NVFP4, 1.0f, 6000.0f, 0x7E, 0x07);          /* saturates, and q */
    check_block(MOERT_FORMAT_NVFP4, 1.0f, 6.0f * 0x1p-9f, 0x01, 0x07);   /* smallest scale */
    check_block(MOERT_FORMAT_NVFP4, 1.0f, 7.0f, 0x39, 0x07);             /* 1.1667 -> 1.125; 6.2 */
    check_block(MOERT_FORMAT_NVFP4, 1.0f, -6.0f * 0x1p-11f, 0x00, 0x00); /* scale 0: zeros */
}

/* ---- an oracle ---- */

/* The magnitude code whose value is nearest, ties to the even one, by search; with its sign. */
static unsigned search(moert_number type, float x) {
    const unsigned last = type == MOERT_NUMBER_E4M3 ? 0x7E : type == MOERT_NUMBER_E5M2 ? 0x7B : 7;
    const double most = (double)moert_number_decode(type, last);
    const double a = fmin(fabs((double)x), most);
    unsigned best = 0;
    for (unsigned code = 1; code <= last; code++) {
        const double new = fabs((double)moert_number_decode(type, code) - a);
        const double old = fabs((double)moert_number_decode(type, best) - a);
        if (new < old || (new == old &&code % 2 == 0))
            best = code;
    }
    return best | (signbit(x) ? last < 8 ? 8u : 0x80u : 0u);
}

typedef struct block {
    unsigned char scale, q[32];
} block;

/* n <= 32 values by the formula. */
static block expect_block(moert_format format, const float *x, size_t n, float norm) {
    const bool nvfp4 = format == MOERT_FORMAT_NVFP4;
    const moert_number type = format == MOERT_FORMAT_MXFP8_E4M3   ? MOERT_NUMBER_E4M3
                              : format == MOERT_FORMAT_MXFP8_E5M2 ? MOERT_NUMBER_E5M2
                                                                  : MOERT_NUMBER_E2M1;
    const float most[] = {448.0f, 128.0f, 6.0f, 6.0f};
    float amax = 0.0f, t, inverse;
    block want = {.scale = 0};
    for (size_t i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(x[i]));
    t = amax * (1.0f / most[format]);
    t *= norm;
    if (nvfp4) {
        want.scale = (unsigned char)search(MOERT_NUMBER_E4M3, t);
        inverse = 1.0f / moert_number_decode(MOERT_NUMBER_E4M3, want.scale);
    } else {
        while (want.scale < 254 && ldexp(1.0, want.scale - 127) < (double)t)
            want.scale++;
        inverse = want.scale == 0 ? INFINITY : (float)ldexp(1.0, 127 - want.scale);
    }
    for (size_t i = 0; i < n; i++)
        if (!nvfp4 || want.scale != 0)
            want.q[i] = (unsigned char)search(type, x[i] * fminf(norm * inverse, FLT_MAX));
    return want;
}

/* The code of element i of the block at row r (or row block r) and column c. */
static unsigned code_at(const quantized *z, const moert_quantizer *how, size_t line,
                        size_t column) {
    const bool halves = moert_format_element_bits(how->format) == 4;
    if (!halves)
        return z->q[line * z->shape.q_bytes + column];
    if (how->axis == MOERT_AXIS_ROW)
        return z->q[line * z->shape.q_bytes + column / 2] >> column % 2 * 4 & 0xFu;
    return z->q[line / 2 * z->shape.q_bytes + column] >> line % 2 * 4 & 0xFu;
}

static void check_rows(const quantized *z, const moert_quantizer *how, const matrix *m,
                       float norm) {
    const size_t size = moert_format_block(how->format);
    for (size_t r = 0; r < m->rows; r++)
        for (size_t c = 0; c < m->columns; c += size) {
            const size_t n = c + size < m->columns ? size : m->columns - c;
            const block want = expect_block(how->format, &m->x[r * m->columns + c], n, norm);
            assert_int_equal(z->scale[r * z->shape.scales + c / size], want.scale);
            for (size_t i = 0; i < n; i++)
                assert_int_equal(code_at(z, how, r, c + i), want.q[i]);
        }
}

/* Blocks begin anew in every group; halves of a partial block are filled up. */
static void check_columns(const quantized *z, const moert_quantizer *how, const matrix *m,
                          float norm) {
    const size_t size = moert_format_block(how->format);
    const bool halves = moert_format_element_bits(how->format) == 4;
    size_t blocks = 0;
    for (size_t g = 0, row = 0; g < m->groups; g++)
        for (; row < m->ends[g]; blocks++) {
            const size_t n = row + size < m->ends[g] ? size : m->ends[g] - row;
            for (size_t c = 0; c < m->columns; c++) {
                float x[32];
                for (size_t i = 0; i < n; i++)
                    x[i] = m->x[(row + i) * m->columns + c];
                const block want = expect_block(how->format, x, n, norm);
                assert_int_equal(z->scale[blocks * z->shape.scales + c], want.scale);
                for (size_t i = 0; i < n; i++)
                    assert_int_equal(code_at(z, how, (halves ? blocks * size : row) + i, c),
                                     want.q[i]);
            }
            row += n;
        }
}

TEST(test_random_matrices_agree_with_a_search_of_the_codes) {
    enum { M = 70, N = 83, POWERS = 4 };
    const uint32_t ends[] = {33, 33, 65, M};
    const float norms[] = {1.0f, 0.01f, 3.7f, 2688.0f / 11.0f};
    const int powers[POWERS] = {0, -128, 100, -6}; /* plain, scale 2^-127, large, scales of 0 */
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
        quantized want = quantize_normed("reference", &how, &m, norm);
        quantized got = quantize_normed("portable", &how, &m, norm);
        char what[64];
        snprintf(what, sizeof what, "case %zu", i);
        if (how.axis == MOERT_AXIS_ROW)
            check_rows(&want, &how, &m, norm);
        else
            check_columns(&want, &how, &m, norm);
        assert_same_quantized(what, &got, &want);
    }
}

/* ---- refusals ---- */

TEST(test_a_norm_needs_a_buffer_and_scales_of_one_byte) {
    const float x[64] = {0};
    moert_buffer *buffer = upload(x, sizeof x), *small;
    moert_quantize op = {.size = sizeof(moert_quantize),
                         .how = HOW(.format = MOERT_FORMAT_FP8_BLOCK),
                         .groups = {.rows = 1},
                         .columns = 32,
                         .x = buffer,
                         .q = buffer,
                         .scale = buffer,
                         .norm = buffer};
    small = test_buffer(2);
    ASSERT_FAILS(moert_quantize_run(&op), MOERT_ERROR_USAGE, "not with fp8-block");
    op.how.format = MOERT_FORMAT_MXFP8_E4M3;
    op.norm = small;
    ASSERT_FAILS(moert_quantize_run(&op), MOERT_ERROR_USAGE, "norm has 2 bytes");
}

TESTS(open_test_device, close_test_device)
