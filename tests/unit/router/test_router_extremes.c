// run: check=1 all=1san
/* The router at the limits of float32: huge and tiny logits, and scores whose sum is as small as
 * 1e-20. */
#include "base/rng.h"
#include "support/layer/router.h"
#include "support/test.h"

TEST(test_extreme_finite_logits_give_finite_results) {
    const float logits[4] = {3e38f, -3e38f, 3e38f, 0.0f};
    for (moert_score score = 0; score <= MOERT_SCORE_SQRT_SOFTPLUS; score++) {
        const float dweight[4] = {1.0f, 2.0f, 3.0f, 4.0f};
        router_run run = router_do(&(router_input){.options = router_options(4, 4, score),
                                                   .tokens = 1,
                                                   .logits = logits,
                                                   .dweight = dweight});
        for (int e = 0; e < 4; e++) {
            assert_true(isfinite(run.scores[e]) && isfinite(run.weight[e]));
            assert_true(isfinite(run.dlogits[e]));
        }
        assert_int_equal(run.index[0], 0);
        assert_int_equal(run.index[1], 2);
    }
}

/* With one expert, the weight is the score, and the gradient is the score's derivative. No larger
 * score can hide an error. Scores of -3e38 are 0. */
TEST(test_sqrt_softplus_and_its_slope_keep_their_digits_from_tiny_to_large) {
    static const float logits[] = {
        -3e38f, -170.0f, -100.0f, -88.0f,  -60.0f, -17.5f, -16.000002f, -16.0f,      -15.99f,
        -12.0f, -4.0f,   -1.0f,   -1e-30f, -0.0f,  0.0f,   1e-30f,      0.00048828f, 1.0f,
        4.0f,   12.0f,   16.0f,   60.0f,   88.0f,  89.0f,  100.0f,      1e4f,        3e38f};
    enum { T = MOERT_COUNT(logits) };
    float dweight[T];
    for (int t = 0; t < T; t++)
        dweight[t] = 1.0f;
    const moert_router_options options = router_options(1, 1, MOERT_SCORE_SQRT_SOFTPLUS);
    const router_run run = router_do(
        &(router_input){.options = options, .tokens = T, .logits = logits, .dweight = dweight});
    for (size_t t = 0; t < T; t++) {
        double score;
        const double x = (double)logits[t];
        oracle_scores(&options, &x, &score);
        const double slope = score > 0.0 ? 0.5 / score / (1.0 + exp(-x)) : 0.0;
        assert_within((double)run.scores[t], score, 4e-7 * score);
        assert_within((double)run.dlogits[t], slope, 1e-6 * slope);
        assert_memory_equal(run.weight + t, run.scores + t, 4);
    }
}

/* At this size, the 1e-20 in the sums of scores matters, and squares of scores underflow. */
TEST(test_backward_is_the_gradient_where_scores_are_as_small_as_1e_20) {
    enum { T = 5, E = 19, K = 3 };
    static const struct {
        moert_score score;
        float shift; /* offset of the logits that gives scores of 1.4e-21 */
    } kinds[] = {{MOERT_SCORE_SIGMOID, -48.0f}, {MOERT_SCORE_SQRT_SOFTPLUS, -96.0f}};
    for (size_t kind = 0; kind < MOERT_COUNT(kinds); kind++) {
        float logits[T * E];
        for (size_t i = 0; i < T * E; i++)
            logits[i] = kinds[kind].shift + (float)moert_rng_normal(23, 3, i);
        router_input input = {
            .options = router_options(E, K, kinds[kind].score), .tokens = T, .logits = logits};
        router_draw_gradients(&input);
        router_check_gradient(&input, 1e-6);
    }
}

/* Logits of many kinds: far apart, equal, a few units in the last place apart, not finite. */
static float hostile_logit(size_t token, size_t experts, size_t expert) {
    const double x = moert_rng_normal(29, token, expert);
    switch (token % 5) {
    case 0:
        return (float)(3.0 * x);
    case 1:
        return (float)(0.25 * floor(4.0 * x));
    case 2:
        return 1.0f + (float)floor(20.0 * x) * 0x1p-23f;
    case 3:
        return (float)(60.0 * x);
    default:
        return token % 10 == 9 && expert == token % experts ? (token % 20 == 9 ? INFINITY : NAN)
                                                            : (float)x;
    }
}

/* On GPUs, a router with groups uses other kernels, which must choose and round in the same way. */
TEST(test_keeping_both_of_two_groups_changes_no_bit) {
    enum { T = 203, MOST = 256 };
    static const size_t sizes[][2] = {{8, 8}, {66, 9}, {128, 8}, {130, 32}, {256, 7}};
    static float logits[T * MOST], bias[MOST];
    for (size_t i = 0; i < MOERT_COUNT(sizes); i++) {
        const size_t experts = sizes[i][0], topk = sizes[i][1];
        for (size_t at = 0; at < T * experts; at++)
            logits[at] = hostile_logit(at / experts, experts, at % experts);
        for (size_t e = 0; e < experts; e++)
            bias[e] = (float)(0.125 * floor(2.0 * moert_rng_normal(31, 0, e)));
        for (int kind = 0; kind < 8; kind++) {
            router_input input = {.options = router_options(experts, topk, (moert_score)(kind / 2)),
                                  .tokens = T,
                                  .logits = logits,
                                  .bias = kind % 2 ? bias : NULL};
            input.options.renormalise = kind % 2;
            router_run one = router_do(&input);
            input.options = router_groups(input.options, 2, 2, 2);
            router_run two = router_do(&input);
            assert_memory_equal(one.index, two.index, T * topk * 4);
            assert_memory_equal(one.scores, two.scores, T * experts * 4);
            assert_memory_equal(one.weight, two.weight, T * topk * 4);
            assert_memory_equal(one.lse, two.lse, T * 4);
        }
    }
}

TESTS(open_test_device, close_test_device)
