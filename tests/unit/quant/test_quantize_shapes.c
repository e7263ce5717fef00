// run: check=1 all=1san
/* Quantizers: runs of columns, values in bf16, rows that hold payload and scales, quantizing a
 * dequantized matrix again, refusals. */
#include <float.h>

#include "base/dtype.h"
#include "support/quant/quantized.h"

TEST(test_every_second_run_of_columns_is_quantized) {
    enum { M = 3, N = 48 };
    const size_t runs[] = {1, 8, 48};
    for (size_t i = 0; i < 3; i++)
        for (size_t b = 0; b < BACKENDS; b++) {
            float *wide = random_floats(M * 2 * N, 2.0f, 5), x[M * N];
            for (size_t k = 0; k < M * N; k++)
                x[k] = wide[k / N * 2 * N + (k % N / runs[i] * 2 + 1) * runs[i] + k % N % runs[i]];
            const matrix m = {x, M, N, NULL, 0}, in_runs = {wide, M, N, NULL, 0};
            quantized want = quantize("reference", &HOW(.axis = 0), &m);
            quantized got = quantize_as((quantized_form){.x_runs = runs[i]}, backends[b],
                                        &HOW(.axis = 0), &in_runs);
            assert_same_bytes("runs", "scale", got.scale, want.scale, want.scale_bytes);
            assert_same_bytes("runs", "q", got.q, want.q, want.q_bytes);
            assert_same_bits("back", got.back, want.back, want.elements);
        }
}

TEST(test_values_come_back_as_bf16) {
    enum { M = 37, N = 75 };
    float *x = random_floats((size_t)M * N, 1.0f, 3);
    const matrix m = {.x = x, .rows = M, .columns = N};
    for (size_t i = 0; i < (size_t)M * N; i++)
        x[i] = ldexpf(x[i], (int)(i / 50 % 200) - 100);
    for (size_t i = 0; i < BACKENDS * 2 * 3; i++) {
        const bool nvfp4 = i / BACKENDS % 2;
        const moert_quantizer how =
            HOW(.format = nvfp4 ? MOERT_FORMAT_NVFP4 : MOERT_FORMAT_MXFP8_E4M3,
                .axis = (moert_axis)(i / BACKENDS / 2));
        quantized want = quantize(backends[i % BACKENDS], &how, &m);
        quantized got = quantize_as((quantized_form){.back = MOERT_DTYPE_BF16},
                                    backends[i % BACKENDS], &how, &m);
        if (nvfp4) /* bf16 holds every value of MXFP8 */
            round_all(want.back, want.elements, MOERT_DTYPE_BF16);
        assert_same_quantized("bf16", &got, &want);
    }
}

/* A row that holds payload and scales has the bytes of separate payload and scales, and dequantizes
 * to the same values. The quantizer does not write the row's padding. */
TEST(test_rows_of_payload_and_scales_have_the_bytes_of_both) {
    enum { ROWS = 7 };
    static const size_t columns[] = {1, 31, 32, 100, 1056}, padding[] = {0, 61};
    for (size_t i = 0; i < 5 * 2 * 2; i++) {
        const moert_quantizer how =
            HOW(.format = i / 2 % 2 ? MOERT_FORMAT_MXFP4 : MOERT_FORMAT_MXFP8_E4M3);
        const matrix m = {.rows = ROWS,
                          .columns = columns[i / 4],
                          .x = random_floats(ROWS * columns[i / 4], 3.0f, i / 4)};
        quantized want = quantize("reference", &how, &m);
        const size_t payload = want.shape.q_bytes, scales = want.shape.scales,
                     row_bytes = payload + scales + padding[i % 2];
        unsigned char *rows = test_alloc(ROWS * row_bytes);
        memset(rows, QUANTIZED_UNSET, ROWS * row_bytes);
        for (size_t r = 0; r < ROWS; r++) {
            memcpy(rows + r * row_bytes, want.q + r * payload, payload);
            memcpy(rows + r * row_bytes + payload, want.scale + r * scales, scales);
        }
        for (size_t b = 0; b < BACKENDS; b++) {
            quantized got =
                quantize_as((quantized_form){.row_bytes = row_bytes}, backends[b], &how, &m);
            assert_same_bytes("rows", "q", got.q, rows, ROWS * row_bytes);
            assert_same_bits("back", got.back, want.back, want.elements);
        }
    }
}

/* ---- quantizing twice ---- */

/* Blocks whose largest elements take every value of a float's upper 16 bits: every exponent, every
 * way to round the largest element, infinity and NaN. The other elements of a block have magnitudes
 * below the largest. */
enum { TOPS = 1 << 15, INFINITE = 0x7F80, OVERFLOWN = 8, BLOCK = 32 };

static float *all_blocks(void) {
    float *x = random_floats(TOPS * BLOCK, 1.0f, 8);
    for (uint32_t i = 0; i < TOPS; i++) {
        const uint32_t bits = i << 16 | (i * 2654435761u & 0xFFFFu);
        const float top = i == INFINITE ? INFINITY : moert_float_from_bits(bits);
        for (int k = 0; k < BLOCK; k++)
            x[i * BLOCK + (unsigned)k] *= i == INFINITE ? FLT_MAX : ldexpf(top, -k / 2);
        x[i * BLOCK] = i % 2 == 0 ? top : -top;
    }
    return x;
}

/*
 * Quantizing the values of an MXFP8 matrix to MXFP8 again does not change them. If a block's
 * largest payload value is 224, the scale halves and the payload doubles, which is exact. If that
 * value is not 224, the scale stays the same. Infinities stay infinite. The exceptions are blocks
 * whose largest element rounds up to 2^128 and therefore dequantizes to infinity.
 */
TEST(test_mxfp8_of_its_own_values_changes_nothing) {
    float *x = all_blocks();
    const matrix m = {.x = x, .rows = TOPS / 8, .columns = 8 * BLOCK};
    for (size_t b = 0; b < BACKENDS; b++) {
        quantized once = quantize(backends[b], &HOW(.axis = MOERT_AXIS_ROW), &m);
        const matrix rounded = {.x = once.back, .rows = m.rows, .columns = m.columns};
        quantized twice = quantize(backends[b], &HOW(.axis = MOERT_AXIS_ROW), &rounded);
        size_t halved = 0, overflown = 0;
        for (size_t i = 0; i < TOPS; i++) {
            if (isinf(once.back[i * BLOCK]) && isfinite(x[i * BLOCK])) {
                overflown++;
                continue;
            }
            assert_same_bits("block", twice.back + i * BLOCK, once.back + i * BLOCK, BLOCK);
            halved += twice.scale[i] + 1 == once.scale[i];
        }
        assert_true(halved > TOPS / 100 && overflown == OVERFLOWN);
    }
}

/* ---- errors ---- */

/* Checks that quantizing refuses `good` with one change, with a message that contains this text. */
#define REFUSED(status, text, change)                                                              \
    do {                                                                                           \
        moert_quantize op = good;                                                                  \
        change;                                                                                    \
        ASSERT_FAILS(moert_quantize_run(&op), (status), (text));                                   \
    } while (0)

TEST(test_wrong_arguments_are_named) {
    const float x[64] = {0};
    const moert_status usage = MOERT_ERROR_USAGE;
    moert_quantize good = quantize_op(&HOW(.axis = 0), 2, 32);
    good.x = good.q = good.scale = upload(x, sizeof x);
    REFUSED(usage, "size is 7; expected the size that MOERT_QUANTIZE_INIT sets", op.size = 7);
    REFUSED(usage, "x has 384 bytes, too few for 1000", op.groups.rows = 1000);
    REFUSED(usage, "q[2,32] is missing", op.q = NULL);
    REFUSED(usage, "size is 3", op.how.size = 3);
    REFUSED(usage, "format of a quantizer is 17", op.how.format = 17);
    REFUSED(usage, "hadamard goes with nvfp4", op.how.hadamard = true);
    REFUSED(usage, "transposed goes with", op.how.transposed = true);
    REFUSED(usage, "not with mxfp8-e4m3", op.how.rounding = MOERT_ROUNDING_STOCHASTIC);
    REFUSED(usage, "32 columns are no multiple", op.x_runs = 5);
    REFUSED(usage, "global scale[1,1] is missing", op.how.format = MOERT_FORMAT_NVFP4);
    REFUSED(MOERT_ERROR_UNSUPPORTED, "not from bf16", op.x_type = MOERT_DTYPE_BF16);
    REFUSED(MOERT_ERROR_UNSUPPORTED, "f32 or bf16", op.x_type = MOERT_DTYPE_F16);
    good.row_bytes = 33;
    good.q = test_buffer(2 * 33);
    ASSERT_OK(moert_quantize_run(&good));
    REFUSED(usage, "32 elements, is below the row width of 33", op.row_bytes = 32);
    REFUSED(usage, "q has 66 bytes, too few for", op.row_bytes = 34);
    REFUSED(usage, "row_bytes goes with", op.how.axis = MOERT_AXIS_COLUMN);
    REFUSED(usage, "row_bytes goes with", op.how.format = MOERT_FORMAT_FP8_BLOCK);
    good.row_bytes = 0;
    good.q = good.norm = good.x;
    REFUSED(usage, "not with fp8-block", op.how.format = MOERT_FORMAT_FP8_BLOCK);
    REFUSED(usage, "norm has 2 bytes", op.norm = test_buffer(2));
    REFUSED(MOERT_ERROR_UNSUPPORTED, "columns of a quantized matrix",
            (op.how.format = MOERT_FORMAT_NVFP4, op.columns = (size_t)1 << 31));
    /* the other functions check the same arguments */
    good.row_bytes = 31;
    ASSERT_FAILS(moert_dequantize_run(&good), usage, "31 elements, is below");
    good.x = test_buffer(2 * 32);
    ASSERT_FAILS(moert_dequantize_run(&good), usage, "too few");
    good.size = 7;
    ASSERT_FAILS(moert_quantize_amax(&good), usage, "MOERT_QUANTIZE_INIT");
    ASSERT_FAILS(moert_dequantize_run(&good), usage, "MOERT_QUANTIZE_INIT");
}

TESTS(open_test_device, close_test_device)
