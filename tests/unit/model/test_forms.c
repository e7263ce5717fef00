// run: check=1 all=1 env=MOERT_BACKEND=portable
/* Sums have the same bits in the kernels' CPU form and GPU form: `test_forms digest` prints a hash
 * of each operation's results, and the test compares that with MOERT_FORM=gpu. */
#include <xxhash.h>

#include "nn/bias.h"
#include "nn/nn.h"
#include "support/attention/attention.h"
#include "support/files.h"
#include "support/layer/router.h"
#include "support/suite.h"

static uint64_t hash_floats(uint64_t hash, const void *values, size_t floats) {
    return XXH3_64bits_withSeed(values, floats * sizeof(float), hash);
}

static uint64_t hash_of(uint64_t hash, const moert_buffer *buffer, size_t floats) {
    return hash_floats(hash, download_floats(buffer, floats), floats);
}

static moert_buffer *values(size_t n, float scale, uint64_t stream) {
    return upload_floats(random_floats(n, scale, stream), n);
}

static void print(const char *name, size_t width, uint64_t hash) {
    printf("%s of %zu: %016llx\n", name, width, (unsigned long long)hash);
}

/* ---- operations ---- */

static void norm(size_t width) {
    const size_t rows = width > 4096 ? 12 : 300, sequences = 2, n = rows * width;
    moert_buffer *scratch = NULL;
    moert_norm forward = {.rows = rows,
                          .width = width,
                          .epsilon = 1e-5f,
                          .x = values(n, 1.0f, 1),
                          .weight = values(width, 1.0f, 2),
                          .y = unset_floats(n),
                          .rstd = unset_floats(rows)};
    ASSERT_OK(moert_norm_run(&forward));
    const moert_norm_gradient backward = {.sequences = sequences,
                                          .rows = rows,
                                          .width = width,
                                          .x = forward.x,
                                          .weight = forward.weight,
                                          .rstd = forward.rstd,
                                          .dy = values(n, 1.0f, 3),
                                          .dx = unset_floats(n),
                                          .partial = unset_floats(sequences * width),
                                          .scratch = &scratch};
    ASSERT_OK(moert_norm_backward(&backward));
    print("norm", width, hash_of(hash_of(0, forward.y, n), forward.rstd, rows));
    print("gradient of norm", width, hash_of(0, backward.dx, n));
    print("gradient of norm's weight", width, hash_of(0, backward.partial, sequences * width));
    moert_buffer_destroy(scratch);
}

static void router(size_t experts, moert_score score) {
    const size_t tokens = 90, n = tokens * experts, slots = tokens * 2;
    const uint32_t ends[] = {50, 90};
    const router_input input = {.options = router_options(experts, 2, score),
                                .tokens = tokens,
                                .logits = random_floats(n, 3.0f, 4),
                                .dweight = random_floats(slots, 1.0f, 5),
                                .aux = random_floats(experts, 1.0f, 6),
                                .z_factor = 0.1f};
    const router_run run = router_do(&input);
    uint64_t hash = hash_floats(0, run.scores, n);
    hash = hash_floats(hash_floats(hash, run.index, slots), run.weight, slots);
    print("router", experts, hash_floats(hash, run.lse, tokens));
    print("gradient of router", experts, hash_floats(0, run.dlogits, n));
    const router_sums sums = router_sum(&input.options, tokens, run.scores, ends, 2);
    print("router's mass", experts, hash_floats(0, sums.mass, 2 * experts));
    print("router's entropy", experts, hash_floats(0, sums.entropy, tokens));
}

static void glu(size_t width) {
    const size_t rows = 20;
    const moert_glu glu = {.form = MOERT_GLU_SWIGLU,
                           .rows = rows,
                           .width = width,
                           .v = values(2 * rows * width, 2.0f, 7),
                           .prob = values(rows, 1.0f, 8),
                           .dh = values(rows * width, 1.0f, 9),
                           .dv = unset_floats(2 * rows * width),
                           .dprob = unset_floats(rows)};
    ASSERT_OK(moert_glu_backward(&glu));
    print("gradient of GLU", width, hash_of(hash_of(0, glu.dv, 2 * rows * width), glu.dprob, rows));
}

static void bias(size_t width) {
    const uint32_t ends[] = {7, 7, 90};
    const moert_scaled_bias bias = {.groups = {upload(ends, sizeof ends), 3, 90},
                                    .n = width,
                                    .ldy = width,
                                    .prob = values(90, 1.0f, 10),
                                    .prob_stride = 1,
                                    .bias = values(3 * width, 1.0f, 11),
                                    .y = values(90 * width, 1.0f, 12),
                                    .dprob = values(90, 1.0f, 13),
                                    .dbias = unset_floats(3 * width)};
    ASSERT_OK(moert_scaled_bias_dprob(&bias));
    ASSERT_OK(moert_scaled_bias_gradient(&bias));
    print("gradients of bias", width, hash_of(hash_of(0, bias.dprob, 90), bias.dbias, 3 * width));
}

static void squares(size_t length) {
    const moert_square_span spans[] = {{{values(length, 1.0f, 14), MOERT_DTYPE_F32, 0}, length},
                                       {{values(99, 1.0f, 15), MOERT_DTYPE_F32, 0}, 99}};
    moert_squares *squares;
    double sums[2];
    ASSERT_OK(moert_squares_create(test_device, spans, 2, &squares));
    ASSERT_OK(moert_squares_sum(squares, sums));
    moert_squares_destroy(squares);
    print("squares", length, XXH3_64bits(sums, sizeof sums));
}

static void attention(size_t length) {
    const attention_oracle inputs = attention_oracle_create((attention_shape){.sequences = 2,
                                                                              .length = length,
                                                                              .heads = 4,
                                                                              .kv_heads = 2,
                                                                              .head_size = 40,
                                                                              .sinks = true});
    const attention_results got = attention_on_device(&inputs, MOERT_DTYPE_F32, NULL);
    for (size_t r = 0; r < ATTENTION_RESULTS; r++)
        print(titled("%s of attention", attention_result_names[r]), length,
              hash_floats(0, got.value[r], got.count[r]));
}

static void loss(size_t vocabulary) {
    const size_t tokens = 5, n = tokens * vocabulary;
    const int32_t target[] = {0, -1, (int32_t)vocabulary / 2, (int32_t)vocabulary - 1, 3};
    const moert_prediction p = {.tokens = tokens,
                                .vocabulary = vocabulary,
                                .target = upload(target, sizeof target),
                                .factor = 0.25f,
                                .logits = values(n, 4.0f, 21),
                                .loss = unset_floats(tokens)};
    ASSERT_OK(moert_cross_entropy(&p));
    print("loss", vocabulary, hash_of(0, p.loss, tokens));
    print("gradient of loss", vocabulary, hash_of(0, p.logits, n));
}

static int print_digests(void) {
    static const size_t widths[] = {20, 128, 300, 1000, 2048, 2880, 7168, 17000};
    if (open_test_device(NULL) != 0)
        return 1;
    const size_t step = suite_skips(true) ? 3 : 1; /* each width compiles kernels */
    for (size_t i = 0; i < MOERT_COUNT(widths); i += step) {
        norm(widths[i]);
        glu(widths[i]);
        bias(widths[i]);
        release_owned();
    }
    for (int s = 0; s <= MOERT_SCORE_SQRT_SOFTPLUS; s++)
        for (size_t experts = 8; experts <= 512; experts *= suite_skips(true) ? 16 : 4)
            router(experts, (moert_score)s);
    squares(3);
    squares(5000000);
    attention(50);
    attention(200);
    loss(300);
    loss(50257);
    return close_test_device(NULL);
}

int main(int count, char **words) {
    return count == 2 && strcmp(words[1], "digest") == 0
               ? print_digests()
               : run_file(__FILE__, make_test_directory, remove_test_directory);
}

TEST(test_both_forms_give_the_same_bits) {
    char *path = realpath("/proc/self/exe", NULL);
    const char *const forms[] = {"cpu", "gpu"};
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            system(titled("ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=0 MOERT_FORM=%s '%s' digest >%s",
                          forms[i], path, in_directory(forms[i]))),
            0);
    assert_int_equal(system(titled("cd %s && diff cpu gpu >&2", test_directory)), 0);
    free(path);
}
