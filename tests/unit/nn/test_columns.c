// run: check=1,1gpu all=1san
/* Copies and sums of columns, and clipped values, against loops on the host. */
#include "nn/nn.h"
#include "support/test.h"

/* A copy reads the narrow buffer, which has rows / repeat rows, and writes the wide one, which has
 * `rows` rows. A sum reads the wide buffer and writes the narrow one. */
typedef struct columns_case {
    size_t rows, repeat, columns, wide_stride, wide_column, narrow_stride, narrow_column;
} columns_case;

static const columns_case cases[] = {{0, 1, 8, 8, 0, 8, 0},        {1, 1, 1, 1, 0, 1, 0},
                                     {37, 1, 20, 24, 4, 52, 16},   {66, 1, 7, 9, 1, 30, 23},
                                     {60, 3, 64, 192, 128, 64, 0}, {96, 32, 16, 24, 8, 80, 64},
                                     {70, 7, 300, 301, 1, 310, 4}, {10, 5, 0, 4, 4, 4, 4}};
#define CASES MOERT_COUNT(cases)

/* Copies columns, or sums them back. All columns outside the block must stay as they are. */
static void check_case(const columns_case *c, bool sums) {
    moert_status (*const run)(const moert_columns *) =
        sums ? moert_columns_sum : moert_columns_copy;
    const size_t narrow = c->rows / c->repeat * c->narrow_stride, wide = c->rows * c->wide_stride;
    const size_t from = sums ? wide : narrow, to = sums ? narrow : wide;
    double *x = random_doubles("x", from), *want = random_doubles("before", to);
    const float *before = to_floats(want, to);
    moert_columns op = {.rows = sums ? c->rows / c->repeat : c->rows,
                        .columns = c->columns,
                        .repeat = c->repeat != 1 ? c->repeat : 0,
                        .from = upload_doubles(x, from),
                        .from_stride = sums ? c->wide_stride : c->narrow_stride,
                        .from_column = sums ? c->wide_column : c->narrow_column,
                        .to = upload_doubles(want, to),
                        .to_stride = sums ? c->narrow_stride : c->wide_stride,
                        .to_column = sums ? c->narrow_column : c->wide_column};
    ASSERT_OK(run(&op));
    for (size_t r = 0; r < op.rows; r++)
        for (size_t k = 0; k < c->columns; k++) {
            double *target = want + r * op.to_stride + op.to_column + k;
            *target = sums ? 0.0 : x[r / c->repeat * op.from_stride + op.from_column + k];
            for (size_t i = 0; sums && i < c->repeat; i++)
                *target += x[(r * c->repeat + i) * op.from_stride + op.from_column + k];
        }
    assert_near_in(sums ? "sum" : "copy", op.to, want, to, sums ? 1e-6 : 1e-7);
    const float *floats = download_floats(op.to, to);
    op.to = upload_as(before, to, MOERT_DTYPE_BF16);
    op.type = MOERT_DTYPE_BF16;
    ASSERT_OK(run(&op));
    assert_bf16("bf16", op.to, floats, to);
}

TEST(test_columns_are_copied_and_summed_and_others_stay) {
    for (size_t i = 0; i < CASES; i++) {
        check_case(&cases[i], false);
        check_case(&cases[i], true);
    }
}

TEST(test_columns_beyond_a_row_are_refused) {
    moert_buffer *x = unset_floats(64), *y = unset_floats(64);
    moert_columns op = {.rows = 2,
                        .columns = 5,
                        .from = x,
                        .from_stride = 8,
                        .from_column = 4,
                        .to = y,
                        .to_stride = 8};
    ASSERT_FAILS(moert_columns_copy(&op), MOERT_ERROR_USAGE, "must lie within source rows");
    op.from_column = 3;
    op.to_column = 4;
    ASSERT_FAILS(moert_columns_sum(&op), MOERT_ERROR_USAGE, "must lie within source rows");
    op.to_column = 3;
    op.type = MOERT_DTYPE_E4M3;
    ASSERT_FAILS(moert_columns_copy(&op), MOERT_ERROR_UNSUPPORTED, "to f32 or bf16");
}

TEST(test_clip_limits_values_and_stops_gradients_beyond_the_limit) {
    const size_t counts[] = {0, 1, 3, 4096, 5003};
    const float limit = 0.5f;
    for (size_t c = 0; c < MOERT_COUNT(counts); c++) {
        const size_t n = counts[c];
        double *values = random_doubles("x", n), *gradients = random_doubles("dy", n);
        double *clipped = test_alloc((n + 1) * sizeof *clipped);
        for (size_t i = 0; i < n; i++) /* some values equal the limit and must pass unclipped */
            values[i] = i % 7 == 0 ? (i % 2 == 0 ? 0.5 : -0.5) : values[i];
        moert_buffer *x = upload_doubles(values, n), *y = unset_floats(n),
                     *dy = upload_doubles(gradients, n);
        ASSERT_OK(moert_clip(n, limit, x, y));
        ASSERT_OK(moert_clip_backward(n, limit, x, dy));
        for (size_t i = 0; i < n; i++) {
            clipped[i] = fmin(fmax(values[i], -0.5), 0.5);
            gradients[i] = fabs(values[i]) > 0.5 ? 0.0 : gradients[i];
        }
        assert_near_in("clipped", y, clipped, n, 1e-7);
        assert_near_in("gradient", dy, gradients, n, 1e-7);
    }
}

TEST(test_clip_keeps_nan_and_needs_a_limit) {
    const float values[] = {NAN, INFINITY, -INFINITY, 1.0f};
    moert_buffer *x = upload_floats(values, 4), *y = unset_floats(4);
    ASSERT_OK(moert_clip(4, 2.0f, x, y));
    const float *got = download_floats(y, 4);
    assert_true(isnan(got[0]));
    assert_true(got[1] == 2.0f && got[2] == -2.0f && got[3] == 1.0f);
    ASSERT_FAILS(moert_clip(4, 0.0f, x, y), MOERT_ERROR_USAGE, "positive limit, not 0");
    ASSERT_FAILS(moert_clip_backward(4, NAN, x, y), MOERT_ERROR_USAGE, "positive limit, not nan");
}

TESTS(open_test_device, close_test_device)
