// run: check=1 all=1san
/*
 * Options and forward of the router, against float64. test_router_backward.c tests the backward,
 * test_router_extremes.c extreme logits.
 */
#include "base/rng.h"
#include "support/layer/router_oracle.h"
#include "support/layer/router_run.h"
#include "support/test.h"

enum { MOST_FLOATS = 64 * 1024 };

static moert_router_options judged(moert_router_options options, size_t groups, size_t kept,
                                   size_t best) {
    options.group_best = best;
    return router_groups(options, groups, kept);
}

static void compare_token(const router_input *input, const router_run *run, size_t t) {
    const moert_router_options *options = &input->options;
    const size_t experts = options->experts, topk = options->topk;
    double row[1024] = {0}, scores[1024], weight[1024];
    int32_t index[1024];
    oracle_row(input, t, row);
    oracle_choose(options, row, input->bias, index);
    oracle_weights(options, row, index, weight);
    for (size_t k = 0; k < topk; k++) {
        assert_int_equal(run->index[t * topk + k], index[k]);
        assert_within((double)run->weight[t * topk + k], weight[k],
                      1e-6 * fmax(1.0, (double)options->scale));
    }
    assert_within((double)run->lse[t], oracle_softmax(row, experts, scores), 2e-6);
    oracle_scores(options, row, scores);
    for (size_t e = 0; e < experts; e++)
        assert_within((double)run->scores[t * experts + e], scores[e], 1e-6);
}

/* Compares the device with the oracle on random logits, and a random bias if `biased`. */
static void check_forward(moert_router_options options, size_t tokens, bool biased) {
    static float logits[MOST_FLOATS], bias[1024];
    /* large enough that adjacent scores differ, small enough that sigmoids do not saturate */
    const double deviation = options.score == MOERT_SCORE_SIGMOID ? 1.0 : 2.0;
    moert_rng_normals(1, 1, 0, 0.1, bias, options.experts);
    const float *used = biased ? bias : NULL;
    oracle_logits(&options, tokens, used, deviation, options.experts, logits);
    const router_input input = {options, tokens, logits, used, NULL, NULL, 0, NULL, NULL, 0};
    router_run run = router_do(&input);
    for (size_t t = 0; t < tokens; t++)
        compare_token(&input, &run, t);
}

TEST(test_forward_agrees_with_float64_for_every_score) {
    for (int score = MOERT_SCORE_SOFTMAX; score <= MOERT_SCORE_SQRT_SOFTPLUS; score++)
        for (int bits = 0; bits < 8; bits++) {
            moert_router_options options = router_options(24, 4, (moert_score)score);
            options.renormalise = bits & 1;
            options.scale = bits & 2 ? 2.5f : 1.0f;
            check_forward(options, 37, bits & 4);
            check_forward(router_groups(options, 4, 2), 37, bits & 4);
        }
}

TEST(test_forward_takes_every_size) {
    static const size_t sizes[][2] = {{1, 1},  {2, 1},  {8, 8},   {15, 2},  {16, 16}, {17, 17},
                                      {31, 5}, {60, 4}, {128, 8}, {160, 6}, {512, 8}};
    for (int score = MOERT_SCORE_SOFTMAX; score <= MOERT_SCORE_SQRT_SOFTPLUS; score++)
        for (size_t i = 0; i < MOERT_COUNT(sizes); i++)
            check_forward(router_options(sizes[i][0], sizes[i][1], (moert_score)score), 19, false);
    check_forward(router_groups(router_options(256, 8, MOERT_SCORE_SIGMOID), 8, 4), 33, true);
    check_forward(router_groups(router_options(34, 2, MOERT_SCORE_SIGMOID), 17, 1), 33, true);
    check_forward(router_groups(router_options(36, 24, MOERT_SCORE_SOFTMAX), 3, 2), 5, false);
    check_forward(judged(router_options(160, 6, MOERT_SCORE_SIGMOID), 8, 3, 1), 33, true);
    check_forward(judged(router_options(160, 12, MOERT_SCORE_SQRT_SOFTPLUS), 8, 3, 4), 33, true);
    check_forward(judged(router_options(51, 3, MOERT_SCORE_SOFTMAX_TOPK), 3, 1, 17), 33, false);
}

TEST(test_forward_of_the_largest_router_chooses_every_expert_once) {
    static float logits[1024];
    for (int e = 0; e < 1024; e++)
        logits[e] = (float)(e * 37 % 1024) * 0.01f;
    const moert_router_options options = router_options(1024, 1024, MOERT_SCORE_SOFTMAX_TOPK);
    router_run run =
        router_do(&(router_input){options, 1, logits, NULL, NULL, NULL, 0, NULL, NULL, 0});
    for (int k = 0; k < 1024; k++)
        assert_int_equal(run.index[k] * 37 % 1024, 1023 - k);
}

static void expect_index(const router_input *input, const int32_t *index) {
    router_run run = router_do(input);
    assert_memory_equal(run.index, index, input->tokens * input->options.topk * sizeof *index);
}

TEST(test_ties_go_to_the_lower_expert) {
    float equal[40], pairs[20], zeros[3] = {-0.0f, 0.0f, -0.0f};
    for (int e = 0; e < 40; e++)
        equal[e] = 0.5f;
    for (int e = 0; e < 20; e++)
        pairs[e] = (float)(e % 2);
    for (int score = MOERT_SCORE_SOFTMAX; score <= MOERT_SCORE_SQRT_SOFTPLUS; score++) {
        router_input input = {
            .options = router_options(20, 3, (moert_score)score), .tokens = 2, .logits = equal};
        expect_index(&input, (int32_t[]){0, 1, 2, 0, 1, 2});
        for (size_t best = 1; best <= 4; best++) {
            input.options = judged(input.options, 5, 2, best);
            expect_index(&input, (int32_t[]){0, 1, 2, 0, 1, 2});
        }
        input = (router_input){
            .options = router_options(20, 12, (moert_score)score), .tokens = 1, .logits = pairs};
        expect_index(&input, (int32_t[]){1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 0, 2});
        input = (router_input){
            .options = router_options(3, 3, (moert_score)score), .tokens = 1, .logits = zeros};
        expect_index(&input, (int32_t[]){0, 1, 2});
    }
}

TEST(test_groups_are_judged_by_the_sum_of_their_best) {
    const float logits[9] = {9.0f, 0.0f, 0.0f, 6.0f, 6.0f, -9.0f, 5.0f, 5.0f, 4.0f};
    const float bias[9] = {0.0f, -INFINITY, -INFINITY, 0.0f, 0.0f, 0.0f, 0.0f, -INFINITY, 0.0f};
    for (int best = 1; best <= 3; best++) {
        router_input input = {.tokens = 1, .logits = logits};
        input.options = judged(router_options(9, 1, MOERT_SCORE_SOFTMAX_TOPK), 3, 1, (size_t)best);
        expect_index(&input, (int32_t[]){best == 1 ? 0 : best == 2 ? 3 : 6});
        input.bias = bias;
        expect_index(&input, (int32_t[]){best == 1 ? 0 : 3});
    }
}

TEST(test_groups_of_one_expert_choose_as_without_groups) {
    enum { T = 9, E = 40, K = 5 };
    static float logits[T * E];
    for (int score = MOERT_SCORE_SOFTMAX; score <= MOERT_SCORE_SQRT_SOFTPLUS; score++) {
        router_input input = {.options = router_options(E, K, (moert_score)score), .tokens = T};
        oracle_logits(&input.options, T, NULL, 1.0, 19, logits);
        input.logits = logits;
        router_run plain = router_do(&input);
        input.options = judged(input.options, E, K, 1);
        expect_index(&input, plain.index);
    }
}

TEST(test_softmax_chooses_by_probability_where_logits_still_differ) {
    /* both small logits have a probability of zero in float32 */
    const float logits[3] = {-200.0f, -150.0f, 10.0f};
    router_input input = {
        .options = router_options(3, 2, MOERT_SCORE_SOFTMAX), .tokens = 1, .logits = logits};
    expect_index(&input, (int32_t[]){2, 0});
    input.options.score = MOERT_SCORE_SOFTMAX_TOPK;
    expect_index(&input, (int32_t[]){2, 1});
}

TEST(test_a_bias_selects_but_does_not_weigh) {
    const float logits[4] = {0.0f, 2.0f, 1.0f, -1.0f}, bias[4] = {1.0f, 0.0f, 0.0f, 0.0f};
    moert_router_options options = router_options(4, 2, MOERT_SCORE_SIGMOID);
    options.renormalise = false;
    router_run run =
        router_do(&(router_input){options, 1, logits, bias, NULL, NULL, 0, NULL, NULL, 0});
    assert_int_equal(run.index[0], 0);
    assert_int_equal(run.index[1], 1);
    assert_within((double)run.weight[0], 0.5, 1e-6);
    assert_within((double)run.weight[1], 1.0 / (1.0 + exp(-2.0)), 1e-6);
}

TEST(test_experts_of_minus_infinite_bias_are_chosen_last) {
    const float logits[5] = {3.0f, 2.0f, 1.0f, 0.0f, -1.0f};
    const float bias[5] = {-INFINITY, 0.0f, -INFINITY, 0.0f, 0.0f};
    router_input input = {.options = router_options(5, 5, MOERT_SCORE_SIGMOID),
                          .tokens = 1,
                          .logits = logits,
                          .bias = bias};
    expect_index(&input, (int32_t[]){1, 3, 4, 0, 2});
}

TEST(test_a_nan_in_the_bias_marks_every_token) {
    const float logits[4] = {3.0f, 2.0f, 1.0f, 0.0f}, bias[2] = {0.0f, NAN};
    router_input input = {.options = router_options(2, 2, MOERT_SCORE_SOFTMAX),
                          .tokens = 2,
                          .logits = logits,
                          .bias = bias};
    expect_index(&input, (int32_t[]){-2, -1, -2, -1});
}

TEST(test_a_token_with_a_non_finite_logit_is_marked_and_weighs_nothing) {
    static float logits[4 * 21];
    const float bad[4] = {NAN, INFINITY, -INFINITY, 0.0f};
    for (int score = MOERT_SCORE_SOFTMAX; score <= MOERT_SCORE_SQRT_SOFTPLUS; score++) {
        const moert_router_options options = router_options(21, 3, (moert_score)score);
        float dweight[12], aux[21];
        oracle_logits(&options, 4, NULL, 1.0, 7, logits);
        for (size_t t = 0; t < 3; t++)
            logits[t * 21 + t * 9] = bad[t];
        for (int i = 0; i < 21; i++)
            aux[i] = dweight[i % 12] = (float)i;
        const router_input input = {options, 4, logits, NULL, dweight, aux, 0.5f, NULL, NULL, 0};
        router_run run = router_do(&input);
        for (size_t t = 0; t < 3; t++) {
            for (size_t k = 0; k < 3; k++) {
                assert_int_equal(run.index[t * 3 + k], k == 0 ? -2 : -1);
                assert_true(run.weight[t * 3 + k] == 0.0f);
            }
            for (size_t e = 0; e < 21; e++)
                assert_true(run.scores[t * 21 + e] == 0.0f && run.dlogits[t * 21 + e] == 0.0f);
            assert_true(run.lse[t] == 0.0f);
        }
        compare_token(&input, &run, 3);
    }
}

TEST(test_padding_loses_its_routing) {
    enum { TOKENS = 600, EXPERTS = 5, TOPK = 2 };
    const moert_router_options options = router_options(EXPERTS, TOPK, MOERT_SCORE_SOFTMAX);
    int32_t token[TOKENS], index[TOKENS * TOPK];
    for (size_t t = 0; t < TOKENS; t++)
        token[t] = t % 3 == 1 ? -1 - (int32_t)t : (int32_t)t;
    float *const scores = random_floats(TOKENS * EXPERTS, 1.0f, 1), *const rest = random_floats(
                                                                        TOKENS * TOPK, 1.0f, 2);
    for (size_t i = 0; i < TOKENS * TOPK; i++)
        index[i] = (int32_t)(i % EXPERTS);
    const moert_routing routing = {upload_floats(scores, TOKENS * EXPERTS),
                                   upload(index, sizeof index), upload_floats(rest, TOKENS * TOPK),
                                   upload_floats(rest, TOKENS)};
    ASSERT_OK(
        moert_router_skip(test_device, &options, TOKENS, upload(token, sizeof token), &routing));
    const float *got = download_floats(routing.scores, TOKENS * EXPERTS),
                *weight = download_floats(routing.weight, TOKENS * TOPK),
                *lse = download_floats(routing.lse, TOKENS);
    int32_t chosen[TOKENS * TOPK];
    ASSERT_OK(moert_buffer_read(routing.index, 0, chosen, sizeof chosen));
    for (size_t t = 0; t < TOKENS; t++) {
        const bool padding = token[t] < 0;
        for (size_t e = t * EXPERTS; e < (t + 1) * EXPERTS; e++)
            assert_true(got[e] == (padding ? 0.0f : scores[e]));
        for (size_t k = t * TOPK; k < (t + 1) * TOPK; k++) {
            assert_int_equal(chosen[k], padding ? -1 : index[k]);
            assert_true(weight[k] == (padding ? 0.0f : rest[k]));
        }
        assert_true(lse[t] == (padding ? 0.0f : rest[t]));
    }
    ASSERT_FAILS(
        moert_router_skip(test_device, &options, 2 * TOKENS, upload(token, sizeof token), &routing),
        MOERT_ERROR_USAGE, "router: token has");
}

TEST(test_no_tokens_are_no_work) {
    const float none[1] = {0.0f};
    router_do(&(router_input){router_options(8, 2, MOERT_SCORE_SOFTMAX), 0, none, NULL, none, NULL,
                              0.0f, NULL, NULL, 0});
}

/* Checks that token t of one batch has the bits of token `to` of another batch. */
static void same_token(const router_run *a, size_t t, const router_run *b, size_t to,
                       size_t experts, size_t topk) {
    assert_memory_equal(a->scores + t * experts, b->scores + to * experts, experts * 4);
    assert_memory_equal(a->dlogits + t * experts, b->dlogits + to * experts, experts * 4);
    assert_memory_equal(a->index + t * topk, b->index + to * topk, topk * 4);
    assert_memory_equal(a->weight + t * topk, b->weight + to * topk, topk * 4);
    assert_memory_equal(a->lse + t, b->lse + to, 4);
}

TEST(test_a_token_has_the_same_bits_at_any_position) {
    enum { T = 45, E = 27, K = 3 };
    static float logits[T * E], reversed[T * E], dweight[T * K], dreversed[T * K], aux[E];
    moert_rng_normals(3, 0, 0, 1.0, aux, E);
    moert_rng_normals(3, 1, 0, 1.0, dweight, T * K);
    for (int score = MOERT_SCORE_SOFTMAX; score <= MOERT_SCORE_SQRT_SOFTPLUS; score++) {
        const moert_router_options options =
            router_groups(router_options(E, K, (moert_score)score), 9, 4);
        oracle_logits(&options, T, NULL, 1.5, 5, logits);
        for (size_t t = 0; t < T; t++) {
            memcpy(reversed + t * E, logits + (T - 1 - t) * E, E * 4);
            memcpy(dreversed + t * K, dweight + (T - 1 - t) * K, K * 4);
        }
        router_run all = router_do(
            &(router_input){options, T, logits, NULL, dweight, aux, 0.25f, NULL, NULL, 0});
        router_run few = router_do(
            &(router_input){options, 29, reversed, NULL, dreversed, aux, 0.25f, NULL, NULL, 0});
        for (size_t t = 0; t < 29; t++)
            same_token(&few, t, &all, T - 1 - t, E, K);
    }
}

TEST(test_check_refuses_contradictions_with_a_clear_text) {
    const moert_score sigmoid = MOERT_SCORE_SIGMOID;
    const moert_router_options good = router_options(16, 4, sigmoid);
    const struct {
        moert_router_options options;
        const char *text;
    } bad[] = {
        {router_options(0, 1, sigmoid), "at least one expert"},
        {router_options(16, 17, sigmoid), "17 experts per token; 1 to 16"},
        {router_options(16, 0, sigmoid), "0 experts per token"},
        {router_options(16, 4, (moert_score)9), "no score kind 9"},
        {router_groups(good, 3, 1), "do not form 3 equal groups"},
        {router_groups(good, 0, 0), "do not form 0 equal groups"},
        {router_groups(good, 16, 8),
         "16 groups cannot be judged by their 2 best experts; 1 to 1 are legal"},
        {judged(good, 4, 2, 0), "their 0 best experts; 1 to 4"},
        {judged(good, 4, 2, 5), "their 5 best experts; 1 to 4"},
        {router_groups(good, 4, 5), "cannot keep 5 of 4 groups"},
        {router_groups(good, 4, 0), "cannot keep 0 of 4 groups"},
        {router_groups(good, 8, 1), "do not fit in 1 kept groups of 2"},
    };
    ASSERT_OK(moert_router_check(&good));
    for (size_t i = 0; i < MOERT_COUNT(bad); i++)
        ASSERT_FAILS(moert_router_check(&bad[i].options), MOERT_ERROR_USAGE, bad[i].text);
    moert_router_options wrong = router_options(1025, 1, sigmoid);
    ASSERT_FAILS(moert_router_check(&wrong), MOERT_ERROR_UNSUPPORTED, "exceed the limit of 1024");
    wrong = good;
    wrong.size = 8;
    ASSERT_FAILS(moert_router_check(&wrong), MOERT_ERROR_USAGE, "MOERT_ROUTER_OPTIONS_INIT");
    for (int i = 0; i < 4; i++) {
        wrong = good;
        wrong.scale = (const float[]){0.0f, -1.0f, NAN, INFINITY}[i];
        ASSERT_FAILS(moert_router_check(&wrong), MOERT_ERROR_USAGE, "must be positive and finite");
    }
}

TEST(test_forward_refuses_buffers_that_are_too_small) {
    const moert_router_options options = router_options(16, 4, MOERT_SCORE_SOFTMAX);
    const char eight[8] = "abcdefg";
    moert_buffer *large = unset_floats(2 * 16), *small = test_buffer(sizeof eight);
    ASSERT_OK(moert_buffer_write(small, 0, eight, sizeof eight));
    moert_routing routing = {large, small, large, large};
    ASSERT_FAILS(moert_router_forward(test_device, &options, 2, large, NULL, &routing),
                 MOERT_ERROR_USAGE, "index has 8 bytes, too few for [2, 4]");
    routing.index = NULL;
    ASSERT_FAILS(moert_router_forward(test_device, &options, 2, large, NULL, &routing),
                 MOERT_ERROR_USAGE, "no buffer for index");
}

TESTS(open_test_device, close_test_device)
