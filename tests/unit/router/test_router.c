// run: check=1 all=1san night=1
/*
 * The router: forward and backward against float64, also for the shapes of TransformerEngine's
 * tests; the choice of experts; refused arguments. test_router_extremes.c tests extreme logits,
 * test_router_losses.c the losses' inputs.
 */
#include "base/rng.h"
#include "support/layer/router.h"
#include "support/suite.h"
#include "support/test.h"

/* ---- forward and backward ---- */

typedef struct shape {
    size_t experts, topk, tokens, groups, kept, best;
    bool slow;
} shape;

static const shape shapes[] = {
    {1, 1, 3, 1, 1, 2, false},    {2, 1, 19, 1, 1, 2, false},    {5, 1, 40, 1, 1, 2, false},
    {8, 8, 17, 1, 1, 2, false},   {15, 2, 19, 1, 1, 2, false},   {16, 2, 16, 1, 1, 2, false},
    {16, 16, 19, 1, 1, 2, false}, {17, 17, 19, 1, 1, 2, false},  {20, 3, 5, 1, 1, 2, false},
    {20, 3, 5, 5, 2, 2, false},   {24, 4, 37, 1, 1, 2, false},   {24, 4, 37, 4, 2, 2, false},
    {31, 5, 19, 1, 1, 2, false},  {33, 5, 1, 1, 1, 2, false},    {34, 2, 33, 17, 1, 2, false},
    {36, 24, 5, 3, 2, 2, false},  {51, 3, 33, 3, 1, 17, false},  {60, 4, 19, 1, 1, 2, false},
    {64, 8, 33, 1, 1, 2, false},  {128, 8, 19, 1, 1, 2, false},  {160, 6, 19, 1, 1, 2, false},
    {160, 6, 33, 8, 3, 1, false}, {160, 12, 33, 8, 3, 4, false}, {256, 8, 33, 8, 4, 2, false},
    {512, 8, 19, 1, 1, 2, false}, {8, 2, 0, 1, 1, 2, false},     {40, 5, 9, 40, 5, 1, false},
};

/* The shapes of TransformerEngine's tests. TransformerEngine scores a group by its topk/group_topk
 * best experts. */
static const shape engine_shapes[] = {
    {32, 1, 2048, 1, 1, 1, false},  {32, 4, 2048, 8, 4, 1, false},   {128, 8, 2048, 8, 4, 2, false},
    {128, 4, 7168, 8, 4, 1, true},  {32, 8, 7168, 8, 4, 2, true},    {128, 8, 8992, 8, 4, 2, true},
    {64, 8, 14234, 8, 4, 2, true},  {256, 8, 512, 8, 4, 2, false},   {256, 8, 2048, 8, 4, 2, true},
    {1024, 32, 64, 8, 4, 8, false}, {1024, 32, 2048, 8, 4, 8, true}, {1024, 8, 8992, 8, 4, 2, true},
};

/* The ends of a batch's sequences. The second sequence is empty. */
enum { SEQUENCES = 4 };
static const uint32_t *ends_of(size_t tokens) {
    uint32_t *ends = test_alloc(SEQUENCES * sizeof *ends);
    ends[0] = ends[1] = (uint32_t)tokens / 8;
    ends[2] = (uint32_t)tokens * 3 / 4;
    ends[3] = (uint32_t)tokens;
    return ends;
}

/* The parts of the loss have 8 combinations, of which the last one has all parts. Checks the
 * gradients of the last `count` combinations. Combinations with a z loss have separate gradients
 * for the scores of each sequence. */
static void check_backward(router_input input, int count) {
    input.sequences = SEQUENCES;
    input.ends = ends_of(input.tokens);
    router_draw_gradients(&input);
    const float *dweight = input.dweight, *aux = input.aux;
    const uint32_t *ends = input.ends;
    for (int bits = 8 - count; bits < 8; bits++) {
        input.dweight =
            bits & 1 ? dweight : test_alloc(input.tokens * input.options.topk * sizeof *dweight);
        input.aux = bits & 2 ? aux : NULL;
        input.z_factor = bits & 4 ? 0.3f : 0.0f;
        input.ends = bits & 4 ? ends : NULL;
        router_check_gradient(&input, 3e-6);
    }
}

/* Checks the inputs of the losses: masses, entropies and counts. The counts ignore biases and
 * groups of experts, so they are compared with the chosen experts only if there are neither. */
static void check_sums(const router_input *input, const router_run *run) {
    const size_t tokens = input->tokens, experts = input->options.experts,
                 topk = input->options.topk, n = SEQUENCES * experts;
    const uint32_t *ends = ends_of(tokens);
    double *mass = test_alloc(n * sizeof *mass), *entropy = test_alloc(tokens * sizeof *entropy),
           *row = test_alloc(experts * sizeof *row), *r = test_alloc(experts * sizeof *r);
    uint32_t *counts = test_alloc(n * sizeof *counts);
    for (size_t t = 0, s = 0; t < tokens; t++) {
        while (t >= ends[s])
            s++;
        oracle_row(input, t, row);
        oracle_normalised_scores(&input->options, row, r);
        for (size_t e = 0; e < experts; e++) {
            mass[s * experts + e] += r[e];
            entropy[t] -= r[e] > 0.0 ? r[e] * log(r[e]) : 0.0;
        }
        for (size_t k = 0; k < topk; k++)
            counts[s * experts + (size_t)run->index[t * topk + k]]++;
    }
    const bool alone = input->bias == NULL && input->options.groups == 1;
    const moert_router_options options =
        alone ? router_groups(input->options, experts, topk, 1) : input->options;
    const router_sums got = router_sum(&options, tokens, run->scores, ends, SEQUENCES);
    assert_close("mass", got.mass, mass, n, 5e-6, 1.3e-6);
    assert_close("entropy", got.entropy, entropy, tokens, 2e-6, 0.0);
    if (alone)
        assert_memory_equal(got.counts, counts, n * sizeof *counts);
}

static void check(const shape *s, moert_score score, bool renormalise, float scale, double bias,
                  int gradients) {
    const size_t before = owned_count();
    moert_router_options options =
        router_groups(router_options(s->experts, s->topk, score), s->groups, s->kept, s->best);
    options.renormalise = renormalise;
    options.scale = scale;
    /* logits for which adjacent scores differ and sigmoids do not saturate */
    const router_input input =
        router_draw(options, s->tokens, score == MOERT_SCORE_SIGMOID ? 1.0 : 2.0, bias);
    const router_run run = router_do(&input);
    for (size_t t = 0; t < s->tokens; t++)
        router_check_token(&input, &run, t);
    check_sums(&input, &run);
    check_backward(input, gradients);
    release_since(before);
}

TEST(test_router_agrees_with_float64_for_every_shape_and_score) {
    for (size_t i = 0; i < MOERT_COUNT(shapes); i++)
        for (int bits = 0; bits < 8 * 4; bits++)
            check(&shapes[i], (moert_score)(bits / 8), bits & 1, bits & 2 ? 2.5f : 1.0f,
                  bits & 4 ? 0.3 : 0.0,
                  shapes[i].experts > 64 ? bits % 8 == 7
                  : bits & 6             ? 1
                                         : 8);
}

/* The scores are softmax before or after the choice, or other scores with or without a bias. Shapes
 * with at least four experts per token also run with groups. */
TEST(test_router_agrees_with_float64_for_the_shapes_of_transformer_engine) {
    for (size_t i = 0; i < MOERT_COUNT(engine_shapes) * 4 * 2 * 2; i++) {
        shape s = engine_shapes[i / 16];
        const moert_score score = (moert_score)(i / 4 % 4);
        const bool softmax = score == MOERT_SCORE_SOFTMAX || score == MOERT_SCORE_SOFTMAX_TOPK;
        const bool option = i / 2 % 2, scaled = i % 2;
        if (!scaled)
            s.groups = s.kept = s.best = 1;
        if (!suite_skips(s.slow))
            check(&s, score, !softmax || option, scaled ? 1.2f : 1.0f,
                  !softmax && option ? 0.1 : 0.0, 1);
    }
}

/* ---- the choice of experts ---- */

TEST(test_forward_of_the_largest_router_chooses_every_expert_once) {
    static float logits[1024];
    for (int e = 0; e < 1024; e++)
        logits[e] = (float)(e * 37 % 1024) * 0.01f;
    const moert_router_options options = router_options(1024, 1024, MOERT_SCORE_SOFTMAX_TOPK);
    router_run run = router_do(&(router_input){.options = options, .tokens = 1, .logits = logits});
    for (int k = 0; k < 1024; k++)
        assert_int_equal(run.index[k] * 37 % 1024, 1023 - k);
}

/* Checks the experts of all tokens; bias may be NULL. */
static void expect_choice(moert_router_options options, size_t tokens, const float *logits,
                          const float *bias, const int32_t *index) {
    const router_run run = router_do(
        &(router_input){.options = options, .tokens = tokens, .logits = logits, .bias = bias});
    assert_memory_equal(run.index, index, tokens * options.topk * sizeof *index);
}

TEST(test_ties_go_to_the_lower_expert) {
    static const int32_t first[] = {0, 1, 2, 0, 1, 2},
                         odd[] = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 0, 2};
    float equal[40], pairs[20], zeros[3] = {-0.0f, 0.0f, -0.0f};
    for (int e = 0; e < 40; e++)
        equal[e] = 0.5f;
    for (int e = 0; e < 20; e++)
        pairs[e] = (float)(e % 2);
    for (moert_score score = 0; score <= MOERT_SCORE_SQRT_SOFTPLUS; score++) {
        const moert_router_options options = router_options(20, 3, score);
        expect_choice(options, 2, equal, NULL, first);
        for (size_t best = 1; best <= 4; best++)
            expect_choice(router_groups(options, 5, 2, best), 2, equal, NULL, first);
        expect_choice(router_options(20, 12, score), 1, pairs, NULL, odd);
        expect_choice(router_options(3, 3, score), 1, zeros, NULL, first);
    }
}

TEST(test_groups_are_judged_by_the_sum_of_their_best) {
    static const float logits[9] = {9.0f, 0.0f, 0.0f, 6.0f, 6.0f, -9.0f, 5.0f, 5.0f, 4.0f},
                       bias[9] = {0.0f, -INFINITY, -INFINITY, 0.0f, 0.0f,
                                  0.0f, 0.0f,      -INFINITY, 0.0f};
    static const int32_t chosen[] = {0, 3, 6}, biased[] = {0, 3, 3};
    const moert_router_options options = router_options(9, 1, MOERT_SCORE_SOFTMAX_TOPK);
    for (size_t best = 1; best <= 3; best++) {
        expect_choice(router_groups(options, 3, 1, best), 1, logits, NULL, &chosen[best - 1]);
        expect_choice(router_groups(options, 3, 1, best), 1, logits, bias, &biased[best - 1]);
    }
}

TEST(test_softmax_chooses_by_probability_where_logits_still_differ) {
    /* both small logits have a probability of zero in float32 */
    static const float logits[3] = {-200.0f, -150.0f, 10.0f};
    expect_choice(router_options(3, 2, MOERT_SCORE_SOFTMAX), 1, logits, NULL, (int32_t[]){2, 0});
    expect_choice(router_options(3, 2, MOERT_SCORE_SOFTMAX_TOPK), 1, logits, NULL,
                  (int32_t[]){2, 1});
}

TEST(test_experts_of_minus_infinite_bias_are_chosen_last_and_a_nan_marks_every_token) {
    static const float logits[5] = {3.0f, 2.0f, 1.0f, 0.0f, -1.0f},
                       bias[5] = {-INFINITY, 0.0f, -INFINITY, 0.0f, 0.0f};
    expect_choice(router_options(5, 5, MOERT_SCORE_SIGMOID), 1, logits, bias,
                  (int32_t[]){1, 3, 4, 0, 2});
    expect_choice(router_options(2, 2, MOERT_SCORE_SOFTMAX), 2, logits, (float[]){0.0f, NAN},
                  (int32_t[]){-2, -1, -2, -1});
}

TEST(test_a_token_with_a_non_finite_logit_is_marked_and_weighs_nothing) {
    enum { E = 21, K = 3 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (moert_score score = 0; score <= MOERT_SCORE_SQRT_SOFTPLUS; score++) {
        router_input input = router_draw(router_options(E, K, score), 4, 1.0, 0.0);
        float *logits = router_own_logits(&input);
        for (size_t t = 0; t < 3; t++)
            logits[t * E + t * 9] = bad[t];
        input.z_factor = 0.5f;
        router_draw_gradients(&input);
        const router_run run = router_do(&input);
        for (size_t t = 0; t < 3; t++) {
            for (size_t k = t * K; k < (t + 1) * K; k++) {
                assert_int_equal(run.index[k], k == t * K ? -2 : -1);
                assert_true(run.weight[k] == 0.0f);
            }
            for (size_t e = t * E; e < (t + 1) * E; e++)
                assert_true(run.scores[e] == 0.0f && run.dlogits[e] == 0.0f);
            assert_true(run.lse[t] == 0.0f);
        }
        router_check_token(&input, &run, 3);
    }
}

TEST(test_a_dropped_slot_passes_no_gradient) {
    enum { E = 18, K = 3 };
    for (int form = 0; form < 8; form++) {
        moert_router_options options = router_options(E, K, (moert_score)(form / 2));
        options.renormalise = form % 2;
        router_input input = router_draw(options, 1, 1.0, 0.0);
        router_draw_gradients(&input);
        float dweight[K] = {input.dweight[0], 0.0f, input.dweight[2]};
        input.dweight = dweight;
        input.z_factor = 0.1f;
        const router_run expected = router_do(&input);
        input.index = (const int32_t[K]){expected.index[0], -1, expected.index[2]};
        dweight[1] = NAN;
        const router_run actual = router_do(&input);
        for (int e = 0; e < E; e++)
            if (e != expected.index[1])
                assert_memory_equal(actual.dlogits + e, expected.dlogits + e, 4);
            else
                assert_true(isfinite(actual.dlogits[e]));
    }
}

TEST(test_padding_loses_its_routing) {
    enum { TOKENS = 600, EXPERTS = 5, TOPK = 2 };
    const moert_router_options options = router_options(EXPERTS, TOPK, MOERT_SCORE_SOFTMAX);
    int32_t token[TOKENS], index[TOKENS * TOPK];
    float *scores = random_floats(TOKENS * EXPERTS, 1.0f, 1),
          *weight = random_floats(TOKENS * TOPK, 1.0f, 2), *lse = random_floats(TOKENS, 1.0f, 3);
    for (size_t t = 0; t < TOKENS; t++)
        token[t] = t % 3 == 1 ? -1 - (int32_t)t : (int32_t)t;
    for (size_t i = 0; i < TOKENS * TOPK; i++)
        index[i] = (int32_t)(i % EXPERTS);
    const moert_buffer *tokens = upload(token, sizeof token);
    const moert_routing routing = {
        upload_floats(scores, TOKENS * EXPERTS), upload(index, sizeof index),
        upload_floats(weight, TOKENS * TOPK), upload_floats(lse, TOKENS)};
    ASSERT_OK(moert_router_skip(test_device, &options, TOKENS, tokens, &routing));
    for (size_t t = 1; t < TOKENS; t += 3) {
        memset(scores + t * EXPERTS, 0, EXPERTS * sizeof *scores);
        memset(index + t * TOPK, 0xFF, TOPK * sizeof *index);
        memset(weight + t * TOPK, 0, TOPK * sizeof *weight);
        lse[t] = 0.0f;
    }
    assert_same_bits_in("scores", routing.scores, scores, TOKENS * EXPERTS);
    assert_memory_equal(download(routing.index, sizeof index), index, sizeof index);
    assert_same_bits_in("weight", routing.weight, weight, TOKENS * TOPK);
    assert_same_bits_in("lse", routing.lse, lse, TOKENS);
    ASSERT_FAILS(moert_router_skip(test_device, &options, 2 * TOKENS, tokens, &routing),
                 MOERT_ERROR_USAGE, "router: token has");
}

/* Checks that the results of token t of one batch have the bits of those of token `to` of another
 * batch. */
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
    for (moert_score score = 0; score <= MOERT_SCORE_SQRT_SOFTPLUS; score++) {
        float reversed[T * E], dreversed[T * K];
        router_input input =
            router_draw(router_groups(router_options(E, K, score), 9, 4, 2), T, 1.5, 0.0);
        input.z_factor = 0.25f;
        router_draw_gradients(&input);
        for (size_t t = 0; t < T; t++) {
            memcpy(reversed + t * E, input.logits + (T - 1 - t) * E, E * 4);
            memcpy(dreversed + t * K, input.dweight + (T - 1 - t) * K, K * 4);
        }
        const router_run all = router_do(&input);
        input.tokens = 29;
        input.logits = reversed;
        input.dweight = dreversed;
        const router_run few = router_do(&input);
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
        {router_groups(good, 3, 1, 2), "do not form 3 equal groups"},
        {router_groups(good, 0, 0, 2), "do not form 0 equal groups"},
        {router_groups(good, 16, 8, 2),
         "16 groups cannot be ranked by 2 best experts each; 1 to 1 experts are legal"},
        {router_groups(good, 4, 2, 0), "0 best experts each; 1 to 4 experts"},
        {router_groups(good, 4, 2, 5), "5 best experts each; 1 to 4 experts"},
        {router_groups(good, 4, 5, 2), "cannot keep 5 of 4 groups"},
        {router_groups(good, 4, 0, 2), "cannot keep 0 of 4 groups"},
        {router_groups(good, 8, 1, 2), "do not fit in 1 kept groups of 2"},
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
