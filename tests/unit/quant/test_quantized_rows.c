// run: check=1 all=1san
/* Rows that hold payload and scales, as in messages; quantizing the values of a quantized matrix
 * again. */
#include <float.h>

#include "base/dtype.h"
#include "support/quant/quantized.h"

/* ---- payload and scales in one row ---- */

/* Checks that each row holds the bytes of the separate payload and scales, keeps its padding, and
 * dequantizes to the same values. */
static void check_rows(const moert_quantizer *how, const matrix *m, size_t padding) {
    quantized want = quantize("reference", how, m);
    const size_t payload = want.shape.q_bytes, scales = want.shape.scales;
    const size_t row_bytes = payload + scales + padding;
    for (size_t b = 0; b < BACKENDS; b++) {
        moert_quantize op = quantize_op(how, m->rows, m->columns);
        op.x = upload(m->x, want.elements * sizeof(float));
        op.q = unset_bytes(m->rows * row_bytes);
        op.global = upload(want.global, want.globals * sizeof(float));
        op.row_bytes = row_bytes;
        set_variable("MOERT_BACKEND", backends[b]);
        ASSERT_OK(moert_quantize_run(&op));
        unsigned char *rows = download(op.q, m->rows * row_bytes);
        for (size_t r = 0; r < m->rows; r++) {
            const unsigned char *row = rows + r * row_bytes;
            assert_memory_equal(row, want.q + r * payload, payload);
            assert_memory_equal(row + payload, want.scale + r * scales, scales);
            for (size_t i = payload + scales; i < row_bytes; i++)
                assert_int_equal(row[i], QUANTIZED_UNSET);
        }
        op.x = unset_floats(want.elements);
        ASSERT_OK(moert_dequantize_run(&op));
        float *back = download(op.x, want.elements * sizeof *back);
        assert_same_bits("back", back, want.back, want.elements);
    }
}

TEST(test_rows_of_payload_and_scales_have_the_bytes_of_both) {
    const size_t columns[] = {1, 31, 32, 100, 1056};
    const moert_format formats[] = {MOERT_FORMAT_MXFP8_E4M3, MOERT_FORMAT_MXFP4};
    for (size_t i = 0; i < 5; i++)
        for (size_t f = 0; f < 2; f++) {
            float *x = random_floats(7 * columns[i], 3.0f, i);
            const matrix m = {.x = x, .rows = 7, .columns = columns[i]};
            check_rows(&HOW(.format = formats[f]), &m, 0);
            check_rows(&HOW(.format = formats[f]), &m, 61);
        }
}

TEST(test_rows_that_cannot_hold_their_scales_are_refused) {
    enum { M = 4, N = 64 };
    float *x = random_floats(M * N, 1.0f, 0);
    moert_quantize op = quantize_op(&HOW(.axis = MOERT_AXIS_ROW), M, N);
    op.x = upload(x, M * N * sizeof *x);
    op.row_bytes = N + 1;
    op.q = test_buffer(M * (N + 2));
    ASSERT_FAILS(moert_quantize_run(&op), MOERT_ERROR_USAGE, "65 elements apart and 66 wide");
    op.row_bytes = N + 3;
    ASSERT_FAILS(moert_quantize_run(&op), MOERT_ERROR_USAGE, "too few");
    op.row_bytes = N + 2;
    ASSERT_OK(moert_quantize_run(&op));
    op.how.axis = MOERT_AXIS_COLUMN;
    ASSERT_FAILS(moert_quantize_run(&op), MOERT_ERROR_USAGE, "row_bytes goes with");
    op.how = HOW(.format = MOERT_FORMAT_FP8_BLOCK);
    ASSERT_FAILS(moert_dequantize_run(&op), MOERT_ERROR_USAGE, "row_bytes goes with");
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
 * largest payload value is 224, the scale halves and the payload doubles, which is exact. Otherwise
 * the scale stays the same. Infinities stay infinite. The exceptions are blocks whose largest
 * element rounds up to 2^128 and therefore dequantizes to infinity.
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

TESTS(open_test_device, close_test_device)
