// run: check=1 all=1,1gpu,1san
/* Causal attention, with windows, sinks and values of another size, against a float64 forward, and
 * gradients against central differences of that forward. */
#include "args/attention.h"
#include "device/launch.h"
#include "nn/nn.h"
#include "support/attention/attention.h"
#include "support/suite.h"

/* {sequences, length, heads, kv_heads, head_size, value_size, window, sinks}: no tokens, one token,
 * lengths at a block's end and one off it; values narrower and wider than keys, as in multi-head
 * latent attention; windows of one key, one block, one more or less, more than all keys; sinks */
enum { WIDE = 1000000000 };
static const attention_shape cases[] = {
    {0, 17, 2, 1, 20, 0, 0, false},    {2, 0, 2, 1, 20, 0, 0, false},
    {1, 1, 1, 1, 20, 0, 0, false},     {3, 17, 4, 2, 20, 0, 0, false},
    {2, 33, 3, 3, 24, 0, 0, false},    {1, 70, 4, 1, 64, 0, 0, false},
    {2, 37, 2, 2, 7, 0, 0, false},     {1, 50, 4, 2, 128, 0, 0, false},
    {1, 70, 2, 1, 300, 0, 0, false},   {1, 64, 1, 1, 16, 0, 0, false},
    {1, 63, 1, 1, 16, 0, 0, false},    {1, 65, 1, 1, 16, 0, 0, false},
    {2, 33, 3, 3, 24, 16, 0, false},   {1, 40, 2, 1, 16, 72, 0, false},
    {1, 35, 2, 2, 192, 128, 0, false}, {1, 19, 2, 1, 9, 5, 0, false},
    {1, 1, 2, 2, 8, 1, 0, false},      {2, 33, 2, 1, 20, 0, 2, false},
    {1, 1, 1, 1, 20, 0, 1, false},     {1, 70, 2, 1, 16, 0, 31, false},
    {1, 97, 1, 1, 8, 0, 32, false},    {1, 97, 1, 1, 8, 0, 33, false},
    {1, 150, 1, 1, 8, 0, 64, false},   {2, 40, 2, 2, 20, 0, 40, false},
    {2, 40, 2, 2, 20, 0, WIDE, false}, {2, 0, 2, 1, 20, 0, 5, true},
    {0, 17, 2, 1, 20, 0, 0, true},     {1, 1, 2, 1, 20, 0, 0, true},
    {3, 17, 4, 2, 20, 0, 0, true},     {1, 70, 3, 1, 64, 0, 0, true},
    {2, 37, 2, 2, 7, 0, 1, true},      {1, 70, 4, 2, 24, 40, 17, true},
};
#define CASES MOERT_COUNT(cases)

TEST(test_attention_agrees_with_float64_and_its_central_differences) {
    for (size_t i = 0; i < CASES; i++) {
        const attention_shape s = cases[i];
        if (suite_skips(s.head_size > 9 && s.head_size != 20 &&
                        /* each size compiles kernels, so the tier check skips most sizes */
                        s.value_size != 40))
            continue;
        attention_oracle o = attention_oracle_create(s);
        attention_results got = attention_on_device(&o, MOERT_DTYPE_F32, NULL);
        for (o.counted = 0; o.counted < s.sequences; o.counted++)
            attention_oracle_loss(&o);
        assert_near("out", got.value[ATTENTION_OUT], o.out, got.count[ATTENTION_OUT], 5e-6);
        assert_near("lse", got.value[ATTENTION_LSE], o.lse, got.count[ATTENTION_LSE], 1e-6);
        for (o.counted = 0; o.counted < s.sequences && s.length > 0; o.counted++) {
            double *const values[] = {o.q, o.k, o.v};
            for (size_t in = 0; in < MOERT_COUNT(values); in++) {
                const size_t r = ATTENTION_DQ + in, n = got.count[r] / s.sequences;
                const size_t at = o.counted * n;
                assert_gradient(
                    titled("case %zu: %s", i, attention_result_names[r]), got.value[r] + at,
                    (differentiated){values[in] + at, n, n / 97 + 1, attention_oracle_loss, &o});
            }
            if (s.sinks)
                assert_gradient(titled("case %zu: dsinks", i),
                                got.value[ATTENTION_DSINKS] + o.counted * s.heads,
                                (differentiated){o.sinks, s.heads, 1, attention_oracle_loss, &o});
        }
    }
}

/* A query whose window is one key returns the key's value. */
TEST(test_attention_with_a_window_of_one_key_copies_values) {
    const attention_shape s = {2, 33, 3, 3, 20, 0, 1, false};
    const size_t n = s.sequences * s.length * attention_width(&s, ATTENTION_OUT);
    attention_oracle o = attention_oracle_create(s);
    const attention_results got = attention_on_device(&o, MOERT_DTYPE_F32, NULL);
    assert_same_bits("out", got.value[ATTENTION_OUT], to_floats(o.v, n), n);
    assert_near("dv", got.value[ATTENTION_DV], o.dout, n, 2e-6); /* p is 1 up to rounding */
    /* dq and dk are multiples of dout . v - dout . out, which is 0 up to rounding because out =
     * v */
    for (size_t i = 0; i < n; i++) {
        assert_within((double)got.value[ATTENTION_DQ][i], 0.0, 1e-5);
        assert_within((double)got.value[ATTENTION_DK][i], 0.0, 1e-5);
    }
}

/* Compares attention in bf16 with the float32 results, which the tests above compare with
 * float64. */
TEST(test_attention_in_bf16_rounds_operands_on_hopper_and_nothing_elsewhere) {
    /* the last shape has more tiles than a GPU has compute units */
    static const attention_shape shapes[] = {
        {2, 1, 1, 1, 64, 0, 0, false},      {1, 63, 2, 1, 64, 0, 0, false},
        {2, 65, 4, 2, 128, 0, 0, false},    {1, 129, 4, 4, 128, 0, 0, false},
        {3, 200, 8, 2, 64, 0, 0, false},    {1, 700, 3, 1, 128, 0, 0, false},
        {1, 70, 2, 1, 96, 0, 0, false},     {1, 70, 2, 1, 64, 0, 9, false},
        {1, 70, 2, 1, 64, 0, 0, true},      {1, 70, 2, 1, 128, 64, 0, false},
        {2, 333, 4, 2, 64, 0, 1, true},     {1, 577, 4, 1, 128, 0, 65, false},
        {2, 400, 2, 2, 64, 0, 130, true},   {1, 1, 2, 2, 192, 128, 0, false},
        {2, 333, 3, 3, 192, 128, 0, false}, {1, 577, 4, 2, 192, 128, 65, true},
        {1, 70, 2, 1, 192, 64, 0, false},   {6, 640, 32, 4, 64, 0, 128, true}};
    const bool hopper = has_hopper("attention in bf16 must be that in f32");
    for (size_t i = 0; i < MOERT_COUNT(shapes) - !hopper; i++) {
        const attention_shape *s = &shapes[i];
        const bool equal = s->value_size == 0 && s->head_size % 64 == 0,
                   latent = s->head_size == 192 && s->value_size == 128;
        const bool rounds = hopper && (equal || latent);
        attention_oracle o = attention_oracle_create(*s);
        const attention_results want = attention_on_device(&o, MOERT_DTYPE_F32, NULL),
                                got = attention_on_device(&o, MOERT_DTYPE_BF16, NULL);
        if (!rounds)
            attention_same_results(&got, &want);
        else /* results are sums of many operands, each with a relative error of up to 2^-9 */
            for (size_t r = 0; r < ATTENTION_RESULTS; r++)
                assert_close(attention_result_names[r], got.value[r],
                             to_doubles(want.value[r], want.count[r]), want.count[r],
                             r < ATTENTION_DQ ? 0.02 : 0.05, 0.02);
    }
}

/* A window at least as long as the sequence has no effect. */
TEST(test_attention_with_a_wide_window_has_the_bits_of_full_attention) {
    attention_oracle o = attention_oracle_create((attention_shape){2, 70, 2, 1, 20, 0, 0, false});
    const attention_results full = attention_on_device(&o, MOERT_DTYPE_F32, NULL);
    const size_t windows[] = {70, 71, 4096, SIZE_MAX};
    for (size_t i = 0; i < MOERT_COUNT(windows); i++) {
        o.shape.window = windows[i];
        const attention_results got = attention_on_device(&o, MOERT_DTYPE_F32, NULL);
        attention_same_results(&got, &full);
    }
}

TEST(test_attention_takes_4096_tokens_and_large_scores) {
    const size_t windows[] = {0, 1000};
    for (size_t w = 0; w < MOERT_COUNT(windows); w++) {
        attention_oracle o =
            attention_oracle_create((attention_shape){1, 4096, 1, 1, 20, 0, windows[w], false});
        for (size_t i = 0; i < 4096 * 20; i++)
            o.q[i] *= 64;
        const attention_results got = attention_on_device(&o, MOERT_DTYPE_F32, NULL);
        for (size_t i = 0; i < 4096; i += 195) {
            attention_oracle_row(&o, 0, i, 0);
            assert_near("out", got.value[ATTENTION_OUT] + i * 20, o.out + i * 20, 20, 2e-4);
            assert_near("lse", got.value[ATTENTION_LSE] + i, o.lse + i, 1, 1e-6);
        }
        for (size_t r = ATTENTION_DQ; r < ATTENTION_RESULTS; r++)
            for (size_t i = 0; i < got.count[r]; i++)
                assert_true(isfinite(got.value[r][i]));
    }
}

/* The shape has so many tiles that each work-group on tensor cores computes several of them in
 * turn. */
TEST(test_many_tiles_on_tensor_cores_have_the_same_bits_in_every_run) {
    static const attention_shape shapes[] = {{4, 1024, 16, 16, 192, 128, 0, false},
                                             {4, 1024, 16, 4, 128, 128, 0, false},
                                             {4, 1024, 16, 2, 64, 64, 200, true}};
    for (size_t i = 0; i < MOERT_COUNT(shapes); i++) {
        const moert_attention of = {.head_size = shapes[i].head_size,
                                    .value_size = shapes[i].value_size,
                                    .type = MOERT_DTYPE_BF16};
        if (moert_attention_operands(test_device, &of) != MOERT_DTYPE_BF16)
            SKIP("no tensor cores for attention here");
        const attention_oracle o = attention_oracle_create(shapes[i]);
        const attention_results want = attention_on_device(&o, MOERT_DTYPE_BF16, NULL);
        for (int again = 0; again < 4; again++) {
            const attention_results got = attention_on_device(&o, MOERT_DTYPE_BF16, NULL);
            attention_same_results(&got, &want);
        }
    }
}

/* The kernel that prepares the backward on tensor cores: lse and delta of each query, and out in
 * bf16. This kernel runs on any device. */
TEST(test_stats_are_lse_and_delta_in_blocks) {
    enum { S = 2, L = 70, HEADS = 3, D = 64, COLUMNS = HEADS * D };
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

/* Applies one change to a valid call on one token, and checks that the call fails. */
#define REFUSED(call, status, text, change)                                                        \
    do {                                                                                           \
        moert_attention a = attention_of_one_token();                                              \
        a.scratch = &scratch;                                                                      \
        change;                                                                                    \
        ASSERT_FAILS(moert_attention_##call(&a), MOERT_ERROR_##status, text);                      \
    } while (0)

TEST(test_attention_refuses_what_it_cannot_do) {
    moert_buffer *scratch = NULL;
    REFUSED(forward, USAGE, "key and value heads", (a.heads = 3, a.kv_heads = 2));
    REFUSED(backward, USAGE, "key and value heads", (a.heads = 3, a.kv_heads = 2));
    REFUSED(forward, USAGE, "key and value heads", a.kv_heads = 0);
    REFUSED(forward, USAGE, "scratch", (a.type = MOERT_DTYPE_BF16, a.scratch = NULL));
    REFUSED(forward, USAGE, "operands in f32, not in bf16", a.type = a.operands = MOERT_DTYPE_BF16);
    REFUSED(backward, UNSUPPORTED, "f32 or bf16", a.type = MOERT_DTYPE_E4M3);
    REFUSED(forward, UNSUPPORTED, "1 to 512 elements", a.head_size = 513);
    REFUSED(forward, UNSUPPORTED, "1 to 512 elements", a.value_size = 513);
    REFUSED(backward, USAGE, "sinks is NULL", a.dsinks = a.dq);
}

TESTS(open_test_device, close_test_device)
