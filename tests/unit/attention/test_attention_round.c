// run: np=1 sanitize=1
/* Kernels that prepare the inputs of attention on tensor cores: rows in bf16, lse and delta. These
 * kernels run on any device. */
#include "args/attention.h"
#include "base/dtype.h"
#include "nn/nn.h"
#include "support/test.h"

enum { S = 2, L = 70, HEADS = 3, D = 64, COLUMNS = HEADS * D, STRIDE = COLUMNS + 32, COLUMN = 16 };
static const char program[] = "attention/round -DVALUE_SIZE=64";

/* Columns [COLUMN, COLUMN + COLUMNS) of each row hold x times `factor` in bf16; all others keep
 * their initial 0xFFFF. */
static void assert_rounded(const uint16_t *to, const double *x, float factor) {
    for (size_t row = 0; row < S * L; row++)
        for (size_t c = 0; c < STRIDE; c++) {
            const bool inside = c >= COLUMN && c < COLUMN + COLUMNS;
            const float value = inside ? factor * (float)x[row * COLUMNS + c - COLUMN] : 0.0f;
            const unsigned want = inside ? moert_dtype_encode(MOERT_DTYPE_BF16, value) : 0xFFFF;
            if (to[row * STRIDE + c] != want)
                fail_msg("row %zu, column %zu: %04x, not %04x", row, c, to[row * STRIDE + c], want);
        }
}

TEST(test_round_rows_gives_the_nearest_bf16_and_keeps_other_columns) {
    const size_t rows = S * L, stride = STRIDE, column = COLUMN, bytes = rows * stride * 2;
    const int columns = COLUMNS;
    const float factor = 0.17f;
    double *x = random_doubles("x", rows * COLUMNS);
    x[0] = 1.00390625 / (double)factor; /* near a tie between two bf16 values */
    x[1] = 3e38;
    moert_buffer *from = upload_doubles(x, rows * COLUMNS), *to = unset_bf16(bytes / 2);
    const moert_grid grid = {(rows * COLUMNS / 4 + 255) / 256, 1, 1};
    ASSERT_OK(MOERT_RUN(test_device, program, "round_rows", grid, MOERT_ARG(from), MOERT_ARG(to),
                        MOERT_ARGS(moert_round_args, .rows = rows, .columns = columns,
                                   .factor = factor, .stride = stride, .column = column)));
    assert_rounded(download(to, bytes), x, factor);
}

TEST(test_stats_are_lse_and_delta_of_rounded_dout_in_blocks) {
    const size_t rows = S * L, blocks = 2, length = L, stride = STRIDE, column = COLUMN;
    const size_t from = rows * stride / 2, stats = S * HEADS * blocks * 128;
    const int heads = HEADS;
    double *out = random_doubles("out", rows * COLUMNS), *lse = random_doubles("lse", rows * HEADS);
    double *dout = random_doubles("dout", rows * COLUMNS), *want = test_alloc(stats * sizeof *want);
    moert_buffer *in[] = {upload_doubles(out, rows * COLUMNS), upload_doubles(dout, rows * COLUMNS),
                          upload_doubles(lse, rows * HEADS)};
    moert_buffer *out_bf16 = unset_bf16(rows * COLUMNS);
    moert_buffer *to = unset_bf16((from + stats) * 2);
    for (size_t i = 0; i < rows * HEADS; i++) {
        const size_t t = i / HEADS, position = t % L;
        double *at = want + ((t / L * blocks + position / 64) * HEADS + i % HEADS) * 128;
        at[position % 64] = lse[i] * 1.4426950408889634;
        for (size_t d = 0; d < D; d++)
            at[64 + position % 64] +=
                out[i * D + d] * (double)round_to(MOERT_DTYPE_BF16, dout[i * D + d]);
    }
    const moert_grid grid = {blocks * 4, HEADS, S};
    ASSERT_OK(MOERT_RUN(test_device, program, "attention_stats", grid, MOERT_ARG(in[0]),
                        MOERT_ARG(out_bf16), MOERT_ARG(in[1]), MOERT_ARG(in[2]), MOERT_ARG(to),
                        MOERT_ARG((const moert_buffer *)NULL),
                        MOERT_ARGS(moert_round_args, .length = length, .heads = heads,
                                   .stride = stride, .column = column, .from = from)));
    float *got = download(to, (from + stats) * sizeof(float));
    assert_rounded((const uint16_t *)got, dout, 1.0f);
    for (size_t i = 0; i < stats; i++)
        if (i / 64 % 2 == 0 && i / (128 * HEADS) % blocks * 64 + i % 64 >= L) {
            assert_true(isinf(got[from + i]) && got[from + i] > 0.0f); /* past the end */
            got[from + i] = 0.0f;
        }
    assert_near("stats", got + from, want, stats, 1e-6);
    assert_bf16("bf16 out", out_bf16, download_floats(in[0], rows * COLUMNS), rows * COLUMNS);
}

TESTS(open_test_device, close_test_device)
