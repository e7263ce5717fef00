// run: check=1 all=1san
/* The kernel that prepares the backward of attention on tensor cores: lse and delta of each query,
 * and out in bf16. It runs on any device. */
#include "args/attention.h"
#include "base/dtype.h"
#include "nn/nn.h"
#include "support/test.h"

enum { S = 2, L = 70, HEADS = 3, D = 64, COLUMNS = HEADS * D };

TEST(test_stats_are_lse_and_delta_in_blocks) {
    const size_t rows = S * L, blocks = 2, length = L;
    const size_t stats = S * HEADS * blocks * 128;
    const int heads = HEADS;
    double *out = random_doubles("out", rows * COLUMNS), *lse = random_doubles("lse", rows * HEADS);
    float *dout = random_floats(rows * COLUMNS, 1.0f, 1);
    double *want = test_alloc(stats * sizeof *want);
    moert_buffer *in[] = {upload_doubles(out, rows * COLUMNS),
                          upload_as(dout, rows * COLUMNS, MOERT_DTYPE_BF16),
                          upload_doubles(lse, rows * HEADS)};
    moert_buffer *out_bf16 = unset_bf16(rows * COLUMNS), *to = unset_floats(stats);
    for (size_t i = 0; i < rows * HEADS; i++) {
        const size_t t = i / HEADS, position = t % L;
        double *at = want + ((t / L * blocks + position / 64) * HEADS + i % HEADS) * 128;
        at[position % 64] = lse[i] * 1.4426950408889634;
        for (size_t d = 0; d < D; d++)
            at[64 + position % 64] +=
                out[i * D + d] * (double)round_to(MOERT_DTYPE_BF16, (double)dout[i * D + d]);
    }
    const moert_grid grid = {blocks * 4, HEADS, S};
    ASSERT_OK(MOERT_RUN(test_device, "attention/stats -DVALUE_SIZE=64", "attention_stats", grid,
                        MOERT_ARG(in[0]), MOERT_ARG(out_bf16), MOERT_ARG(in[1]), MOERT_ARG(in[2]),
                        MOERT_ARG(to), MOERT_ARG((const moert_buffer *)NULL),
                        MOERT_ARGS(moert_stats_args, .length = length, .heads = heads)));
    float *got = download_floats(to, stats);
    for (size_t i = 0; i < stats; i++)
        if (i / 64 % 2 == 0 && i / (128 * HEADS) % blocks * 64 + i % 64 >= L) {
            assert_true(isinf(got[i]) && got[i] > 0.0f); /* past the end */
            got[i] = 0.0f;
        }
    assert_near("stats", got, want, stats, 1e-6);
    assert_bf16("bf16 out", out_bf16, download_floats(in[0], rows * COLUMNS), rows * COLUMNS);
}

TESTS(open_test_device, close_test_device)
