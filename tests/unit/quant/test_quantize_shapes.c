// run: check=1 all=1san
/* Quantizers: equal bytes on both backends for hostile data and shapes; axes, groups, runs of
 * columns; rows that hold payload and scales; quantizing the values of a quantized matrix again. */
#include <float.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "support/quant/quantized.h"

/* ---- both backends ---- */

static const moert_quantizer hows[] = {
    {.format = MOERT_FORMAT_MXFP8_E4M3},
    {.format = MOERT_FORMAT_MXFP8_E4M3, .axis = MOERT_AXIS_COLUMN},
    {.format = MOERT_FORMAT_MXFP8_E4M3, .axis = MOERT_AXIS_COLUMN, .transposed = true},
    {.format = MOERT_FORMAT_MXFP8_E4M3, .axis = MOERT_AXIS_TILE, .scale_rounding = 1},
    {.format = MOERT_FORMAT_MXFP8_E5M2, .scale_rounding = MOERT_SCALE_FLOOR},
    {.format = MOERT_FORMAT_MXFP8_E5M2, .axis = MOERT_AXIS_COLUMN},
    {.format = MOERT_FORMAT_MXFP4},
    {.format = MOERT_FORMAT_MXFP4, .scale_rounding = MOERT_SCALE_FLOOR},
    {.format = MOERT_FORMAT_MXFP4, .axis = MOERT_AXIS_COLUMN, .rounding = MOERT_ROUNDING_BRIDGE},
    {.format = MOERT_FORMAT_MXFP4, .axis = MOERT_AXIS_TILE, .rounding = MOERT_ROUNDING_STOCHASTIC},
    {.format = MOERT_FORMAT_NVFP4},
    {.format = MOERT_FORMAT_NVFP4, .nvfp4_rule = MOERT_NVFP4_TORCHAO, .group_scales = true},
    {.format = MOERT_FORMAT_NVFP4, .nvfp4_rule = MOERT_NVFP4_BRIDGE},
    {.format = MOERT_FORMAT_NVFP4, .rounding = MOERT_ROUNDING_STOCHASTIC, .seed = 1ull << 40},
    {.format = MOERT_FORMAT_NVFP4, .axis = MOERT_AXIS_TILE},
    {.format = MOERT_FORMAT_NVFP4, .axis = MOERT_AXIS_COLUMN, .group_scales = true},
    {.format = MOERT_FORMAT_NVFP4, .axis = MOERT_AXIS_COLUMN, .hadamard = true, .transposed = true},
    {.format = MOERT_FORMAT_NVFP4,
     .axis = MOERT_AXIS_COLUMN,
     .hadamard = true,
     .group_scales = true,
     .rounding = MOERT_ROUNDING_STOCHASTIC,
     .seed = 3},
    {.format = MOERT_FORMAT_FP8_BLOCK},
    {.format = MOERT_FORMAT_FP8_BLOCK, .axis = MOERT_AXIS_COLUMN},
    {.format = MOERT_FORMAT_FP8_BLOCK, .axis = MOERT_AXIS_COLUMN, .transposed = true},
    {.format = MOERT_FORMAT_FP8_BLOCK, .axis = MOERT_AXIS_TILE},
};
enum { HOWS = MOERT_COUNT(hows) };

static moert_quantizer how_at(size_t i) {
    moert_quantizer how = hows[i];
    how.size = sizeof how;
    return how;
}

enum { NORMAL, WIDE, SUBNORMAL, SPECIAL, ZERO, DATA };

/* Returns n values of the given kind of test data. */
static float *make_data(int kind, size_t n) {
    float *x = random_floats(n, 1.0f, (uint64_t)kind);
    for (size_t i = 0; i < n; i++) {
        const int power = (int)(i * 2654435761u >> 7 & 0xFF) - 127;
        if (kind == WIDE)
            x[i] = ldexpf(x[i], power); /* magnitudes from subnormal numbers to 2^128 */
        else if (kind == SUBNORMAL)
            x[i] = ldexpf(x[i], -127 - (int)(i % 20));
        else if (kind == ZERO)
            x[i] = i % 3 == 0 ? -0.0f : 0.0f;
        else if (kind == SPECIAL && i % 131 == 0)
            x[i] =
                (const float[]){
                    INFINITY, -INFINITY, FLT_MAX, -FLT_MAX, 0, NAN, -NAN}[i / 131 %
                                                                          (n % 2 == 0 ? 7 : 4)];
    }
    return x;
}

TEST(test_backends_give_the_same_bytes_on_hostile_data_and_shapes) {
    const uint32_t ends[] = {0, 3, 3, 20, 37, 133, 133};
    const matrix shapes[] = {
        {.rows = 1, .columns = 1},
        {.rows = 33, .columns = 31},
        {.rows = 40, .columns = 96},
        {.rows = 140, .columns = 147, .ends = ends, .groups = 7},
        {.rows = 133, .columns = 1040, .ends = ends, .groups = 7},
        {.rows = 0, .columns = 16},
    };
    for (size_t i = 0; i < HOWS * DATA * 6; i++) {
        const moert_quantizer how = how_at(i % HOWS);
        const int kind = (int)(i / HOWS % DATA);
        matrix m = shapes[i / HOWS / DATA];
        if (m.columns > 1000 && kind != NORMAL)
            /* these columns are more than one strip of the kernel, for which one kind of data is
             * enough */
            continue;
        m.x = make_data(kind, m.rows * m.columns);
        quantized want = quantize("reference", &how, &m), got = quantize("portable", &how, &m);
        assert_same_quantized(
            titled("quantizer %zu, data %d, %zu x %zu", i % HOWS, kind, m.rows, m.columns), &got,
            &want);
    }
}

/* ---- axes, groups, runs ---- */

TEST(test_columns_are_the_rows_of_the_transpose_group_by_group) {
    enum { M = 96 + 40, N = 50 };
    const uint32_t ends[] = {96, 96, M};
    float *x = random_floats(M * N, 3.0f, 1), *transposed = test_alloc(M * N * sizeof *transposed);
    for (size_t f = 0; f <= MOERT_FORMAT_FP8_BLOCK; f++) {
        const moert_quantizer columns =
            HOW(.format = f, .axis = MOERT_AXIS_COLUMN, .transposed = true);
        const moert_quantizer rows = HOW(.format = f);
        const bool halves = moert_format_element_bits(f) == 4;
        const size_t block = moert_format_block(f), bytes = moert_format_scale_bytes(f);
        const matrix m = {x, M, N, ends, 3};
        quantized whole = quantize("portable", &columns, &m);
        for (size_t g = 0, start = 0, first = 0; g < 3; start = ends[g++]) {
            const size_t own = ends[g] - start;
            for (size_t r = 0; r < own; r++)
                for (size_t c = 0; c < N; c++)
                    transposed[c * own + r] = x[(start + r) * N + c];
            /* all groups share one global scale */
            const matrix part = {transposed, N, own, NULL, 0};
            quantized z = quantize("reference", &rows, &part);
            const bool comparable = f != MOERT_FORMAT_NVFP4 || *z.amax == *whole.amax;
            for (size_t c = 0; c < N && own > 0 && comparable; c++) {
                const size_t line = halves ? first * block / 2 : start;
                assert_memory_equal(whole.q + c * whole.shape.q_bytes + line,
                                    z.q + c * z.shape.q_bytes, z.shape.q_bytes);
                assert_memory_equal(whole.scale + (c * whole.shape.scales + first) * bytes,
                                    z.scale + c * z.shape.scales * bytes, z.shape.scales * bytes);
            }
            first += moert_ceil_div(own, block);
        }
    }
}

TEST(test_tiles_repeat_one_scale_and_rows_past_the_groups_stay) {
    enum { M = 70, N = 40 };
    const uint32_t ends[] = {33, 65};
    float *x = random_floats(M * N, 3.0f, 2);
    const matrix m = {x, M, N, ends, 2};
    for (size_t b = 0; b < BACKENDS; b++) {
        quantized z = quantize(backends[b], &HOW(.axis = MOERT_AXIS_TILE), &m);
        for (size_t r = 0; r < M; r++) {
            const size_t first = r < 32 ? 0 : r < 33 ? 32 : r < 65 ? 33 : r;
            assert_memory_equal(z.scale + r * 2, z.scale + first * 2, 2);
        }
        for (size_t i = 65 * 2; i < M * 2; i++)
            assert_int_equal(z.scale[i], QUANTIZED_UNSET);
        for (size_t i = 65 * N; i < M * N; i++)
            assert_int_equal(z.q[i], QUANTIZED_UNSET);
    }
}

TEST(test_every_second_run_of_columns_is_quantized) {
    enum { M = 3, N = 48 };
    const size_t runs[] = {1, 8, 48};
    for (size_t i = 0; i < 3; i++)
        for (size_t b = 0; b < BACKENDS; b++) {
            float *wide = random_floats(M * 2 * N, 2.0f, 5), x[M * N];
            for (size_t k = 0; k < M * N; k++)
                x[k] = wide[k / N * 2 * N + (k % N / runs[i] * 2 + 1) * runs[i] + k % N % runs[i]];
            const matrix m = {x, M, N, NULL, 0};
            quantized want = quantize("reference", &HOW(.axis = 0), &m);
            moert_quantize op = quantize_op(&HOW(.axis = 0), M, N);
            op.x = upload(wide, 2 * sizeof x);
            op.q = upload(x, want.q_bytes);
            op.scale = upload(x, want.scale_bytes);
            op.x_runs = runs[i];
            set_variable("MOERT_BACKEND", backends[b]);
            ASSERT_OK(moert_quantize_run(&op));
            unsigned char *q = download(op.q, want.q_bytes);
            assert_memory_equal(q, want.q, want.q_bytes);
        }
}

/* ---- bf16 ---- */

/* Dequantizes to bf16: MXFP8 exactly, NVFP4 rounded. */
static void check_bf16(const char *backend, const moert_quantizer *how, const matrix *m) {
    quantized z = quantize(backend, how, m);
    const size_t bytes = z.elements * sizeof(uint16_t);
    moert_quantize op = quantize_op(how, m->rows, m->columns);
    op.x = unset_bytes(bytes);
    op.x_type = MOERT_DTYPE_BF16;
    op.q = upload(z.q, z.q_bytes);
    op.scale = upload(z.scale, z.scale_bytes);
    op.global = upload(z.global, z.globals * sizeof(float));
    ASSERT_OK(moert_dequantize_run(&op));
    uint16_t *values = download(op.x, bytes);
    for (size_t i = 0; i < z.elements; i++) {
        assert_int_equal(values[i], moert_dtype_encode(MOERT_DTYPE_BF16, z.back[i]));
        if (how->format == MOERT_FORMAT_MXFP8_E4M3)
            assert_true(moert_dtype_decode(MOERT_DTYPE_BF16, values[i]) == z.back[i]);
    }
    ASSERT_FAILS(moert_quantize_run(&op), MOERT_ERROR_UNSUPPORTED, "not from bf16");
    op.x_type = MOERT_DTYPE_F16;
    ASSERT_FAILS(moert_dequantize_run(&op), MOERT_ERROR_UNSUPPORTED, "f32 or bf16");
    op.x_type = MOERT_DTYPE_F32;
    ASSERT_FAILS(moert_dequantize_run(&op), MOERT_ERROR_USAGE, "too few");
}

TEST(test_values_come_back_as_bf16) {
    enum { M = 37, N = 75 };
    float *x = random_floats((size_t)M * N, 1.0f, 3);
    const matrix m = {.x = x, .rows = M, .columns = N};
    for (size_t i = 0; i < (size_t)M * N; i++)
        x[i] = ldexpf(x[i], (int)(i / 50 % 200) - 100);
    for (size_t b = 0; b < BACKENDS; b++)
        for (int axis = MOERT_AXIS_ROW; axis <= MOERT_AXIS_TILE; axis++) {
            check_bf16(backends[b], &HOW(.axis = (moert_axis)axis), &m);
            check_bf16(backends[b], &HOW(.format = MOERT_FORMAT_NVFP4, .axis = (moert_axis)axis),
                       &m);
        }
}

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
