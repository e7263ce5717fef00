// run: np=1 sanitize=1
/* The router where float32 runs out: huge and tiny logits, scores whose sum is as small as 1e-20.
 */
#include <math.h>

#include "base/rng.h"
#include "support/router_oracle.h"
#include "support/router_run.h"
#include "support/test.h"

static moert_router_options make(size_t experts, size_t topk, moert_score score) {
    moert_router_options options = MOERT_ROUTER_OPTIONS_INIT;
    options.experts = experts;
    options.topk = topk;
    options.score = score;
    return options;
}

static void test_extreme_finite_logits_give_finite_results(void **state) {
    (void)state;
    const float logits[4] = {3e38f, -3e38f, 3e38f, 0.0f};
    for (int score = MOERT_SCORE_SOFTMAX; score <= MOERT_SCORE_SIGMOID; score++) {
        const float dweight[4] = {1.0f, 2.0f, 3.0f, 4.0f};
        router_run run = router_do(&(router_input){make(4, 4, (moert_score)score), 1, logits, NULL,
                                                   dweight, NULL, 0.0f, NULL});
        for (int e = 0; e < 4; e++) {
            assert_true(isfinite(run.scores[e]) && isfinite(run.weight[e]));
            assert_true(isfinite(run.dlogits[e]));
        }
        assert_int_equal(run.index[0], 0);
        assert_int_equal(run.index[1], 2);
        router_run_free(&run);
    }
}

/* There the 1e-20 of the sums counts. */
static void test_backward_is_the_gradient_where_scores_are_as_small_as_1e_20(void **state) {
    (void)state;
    enum { T = 5, E = 19, K = 3 };
    static const struct {
        moert_score score;
        float shift; /* to scores of 1.4e-21 */
    } kinds[] = {{MOERT_SCORE_SIGMOID, -48.0f}};
    float logits[T * E], dweight[T * K], aux[E];
    for (size_t i = 0; i < T * K; i++)
        dweight[i] = (float)moert_rng_normal(23, 1, i);
    for (size_t e = 0; e < E; e++)
        aux[e] = (float)moert_rng_normal(23, 2, e);
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        for (size_t i = 0; i < T * E; i++)
            logits[i] = kinds[kind].shift + (float)moert_rng_normal(23, 3, i);
        const router_input input = {
            make(E, K, kinds[kind].score), T, logits, NULL, dweight, aux, 0.0f, NULL};
        router_run run = router_do(&input);
        for (size_t t = 0; t < T; t++)
            for (size_t e = 0; e < E; e++)
                assert_within((double)run.dlogits[t * E + e],
                              oracle_gradient(&input, run.index + t * K, t, e), 1e-6);
        router_run_free(&run);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_extreme_finite_logits_give_finite_results),
        cmocka_unit_test(test_backward_is_the_gradient_where_scores_are_as_small_as_1e_20),
    };
    return cmocka_run_group_tests(tests, open_test_device, close_test_device);
}
