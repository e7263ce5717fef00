// run: check=1 all=1san
/*
 * Backward of the router against float64 central differences with the choice held fixed, and the
 * host side of the losses.
 */
#include <math.h>

#include "base/rng.h"
#include "support/layer/router_oracle.h"
#include "support/layer/router_run.h"
#include "support/test.h"

enum { MOST_EXPERTS = 64, MOST_TOKENS = 40 };

/* Checks every combination of the parts of the loss. */
static void check_terms(moert_router_options options, size_t tokens, bool biased) {
    static float logits[MOST_TOKENS * MOST_EXPERTS], bias[MOST_EXPERTS], aux[MOST_EXPERTS];
    static float dweight[MOST_TOKENS * MOST_EXPERTS];
    static const float zeros[MOST_TOKENS * MOST_EXPERTS];
    moert_rng_normals(11, 1, 0, 1.0, bias, options.experts);
    moert_rng_normals(11, 2, 0, 1.0, aux, options.experts);
    moert_rng_normals(11, 3, 0, 1.0, dweight, tokens * options.topk);
    router_input input = {options, tokens, logits, biased ? bias : NULL, dweight, NULL, 0,
                          NULL,    NULL,   0};
    oracle_logits(&options, tokens, input.bias, 1.0, 4, logits);
    for (int bits = 0; bits < 8; bits++) {
        input.dweight = bits & 1 ? dweight : zeros;
        input.aux = bits & 2 ? aux : NULL;
        input.z_factor = bits & 4 ? 0.3f : 0.0f;
        oracle_check_gradient(&input, 3e-6);
    }
}

TEST(test_backward_is_the_gradient_of_every_kind_of_router) {
    for (int score = MOERT_SCORE_SOFTMAX; score <= MOERT_SCORE_SQRT_SOFTPLUS; score++)
        for (int bits = 0; bits < 16; bits++) {
            moert_router_options options = router_options(20, 3, (moert_score)score);
            options.renormalise = bits & 1;
            options.scale = bits & 2 ? 2.5f : 1.0f;
            if (bits & 4)
                options = router_groups(options, 5, 2);
            check_terms(options, 5, bits & 8);
        }
}

TEST(test_backward_takes_every_size) {
    static const size_t sizes[][3] = {{1, 1, 3},   {5, 1, 40}, {8, 8, 17},
                                      {16, 2, 16}, {33, 5, 1}, {64, 8, 33}};
    for (int score = MOERT_SCORE_SOFTMAX; score <= MOERT_SCORE_SQRT_SOFTPLUS; score++)
        for (size_t i = 0; i < 2 * MOERT_COUNT(sizes); i++) {
            moert_router_options options =
                router_options(sizes[i / 2][0], sizes[i / 2][1], (moert_score)score);
            options.renormalise = i % 2;
            check_terms(options, sizes[i / 2][2], false);
        }
}

TEST(test_a_dropped_slot_passes_no_gradient) {
    enum { E = 18, K = 3 };
    float logits[E], dweight[K], without[K];
    for (int form = 0; form < 8; form++) {
        moert_router_options options = router_options(E, K, (moert_score)(form / 2));
        options.renormalise = form % 2;
        oracle_logits(&options, 1, NULL, 1.0, 9, logits);
        moert_rng_normals(11, 5, 0, 1.0, dweight, K);
        memcpy(without, dweight, sizeof without);
        without[1] = 0.0f;
        router_input input = {options, 1, logits, NULL, without, NULL, 0.1f, NULL, NULL, 0};
        router_run expected = router_do(&input);
        const int32_t index[K] = {expected.index[0], -1, expected.index[2]};
        dweight[1] = NAN;
        input.dweight = dweight;
        input.index = index;
        router_run actual = router_do(&input);
        for (int e = 0; e < E; e++)
            if (e != expected.index[1])
                assert_memory_equal(actual.dlogits + e, expected.dlogits + e, 4);
            else
                assert_true(isfinite(actual.dlogits[e]));
    }
}

/* Checks one form of the load-balancing loss at every step: choice, counts, sums, gradient,
 * dlogits. */
static void check_aux(moert_aux_form form, moert_score score) {
    enum { T = 6, E = 7, K = 2 };
    static const float none[T * K];
    float values[T * E], gradient[E], ignored[E];
    double logits[T * E], mass[E];
    uint64_t counts[E];
    router_input input = {.options = router_options(E, K, score), .tokens = T, .logits = values};
    oracle_logits(&input.options, T, NULL, 1.0, 13, values);
    for (size_t i = 0; i < T * E; i++)
        logits[i] = (double)values[i];
    router_run forward = router_do(&input);
    oracle_load(&input, logits, forward.index, counts, mass);
    const moert_router_load load = {counts, mass, T};
    moert_router_aux_loss(form, &input.options, &load, 0.5, gradient);
    input.dweight = none;
    input.aux = gradient;
    router_run run = router_do(&input);
    for (size_t i = 0; i < T * E; i++) {
        double value[2];
        for (int side = 0; side < 2; side++) {
            logits[i] = (double)values[i] + (side ? 1e-5 : -1e-5);
            oracle_load(&input, logits, forward.index, counts, mass);
            value[side] = moert_router_aux_loss(form, &input.options, &load, 1, ignored);
        }
        logits[i] = (double)values[i];
        assert_within((double)run.dlogits[i], 0.5 * (value[1] - value[0]) / 2e-5, 1e-7);
    }
}

TEST(test_backward_is_the_gradient_of_both_forms_of_the_aux_loss) {
    for (int score = MOERT_SCORE_SOFTMAX; score <= MOERT_SCORE_SQRT_SOFTPLUS; score++) {
        check_aux(MOERT_AUX_HUGGING_FACE, (moert_score)score);
        check_aux(MOERT_AUX_MEGATRON, (moert_score)score);
    }
}

TEST(test_aux_loss_has_the_values_of_the_formulas) {
    const moert_router_options options = router_options(4, 2, MOERT_SCORE_SOFTMAX);
    const moert_router_load even = {(uint64_t[]){5, 5, 5, 5}, (double[]){2.5, 2.5, 2.5, 2.5}, 10};
    const moert_router_load skewed = {(uint64_t[]){10, 10, 0, 0}, (double[]){6, 3, 1, 0}, 10};
    /* With balanced routing, the loss is K in one form and 1 in the other. Skewed: 4 * (10/10 *
     * 6/10 + 10/10 * 3/10) = 3.6, and 3.6 / K = 1.8. */
    const struct {
        moert_aux_form form;
        const moert_router_load *load;
        double coefficient, value, gradient; /* gradient: of the first expert */
    } cases[] = {{MOERT_AUX_HUGGING_FACE, &even, 1, 2.0, 4.0 * 5 / 100},
                 {MOERT_AUX_MEGATRON, &even, 1, 1.0, 4.0 * 5 / 200},
                 {MOERT_AUX_HUGGING_FACE, &skewed, 0.01, 3.6, 0.01 * 4 * 10 / 100},
                 {MOERT_AUX_MEGATRON, &skewed, 0.01, 1.8, 0.01 * 4 * 10 / 200}};
    for (size_t i = 0; i < MOERT_COUNT(cases); i++) {
        float gradient[4];
        assert_within(moert_router_aux_loss(cases[i].form, &options, cases[i].load,
                                            cases[i].coefficient, gradient),
                      cases[i].value, 1e-14);
        assert_within((double)gradient[0], cases[i].gradient, 1e-8);
        assert_within((double)gradient[1], cases[i].gradient, 1e-8);
        assert_true((gradient[3] == 0.0f) == (cases[i].load == &skewed));
    }
}

TEST(test_aux_loss_of_no_rows_is_zero) {
    const moert_router_options options = router_options(2, 2, MOERT_SCORE_SOFTMAX);
    float gradient[2] = {1.0f, 1.0f};
    const moert_router_load none = {(uint64_t[]){0, 0}, (double[]){0, 0}, 0};
    assert_true(moert_router_aux_loss(MOERT_AUX_MEGATRON, &options, &none, 1, gradient) == 0.0);
    assert_true(gradient[0] == 0.0f && gradient[1] == 0.0f);
}

TEST(test_update_bias_helps_the_experts_below_the_mean) {
    float bias[4] = {0.5f, 0.0f, -0.25f, 0.0f};
    moert_router_update_bias(bias, (uint64_t[]){9, 1, 4, 2}, 4, 0.125f);
    const float expected[4] = {0.375f, 0.125f, -0.25f, 0.125f};
    assert_memory_equal(bias, expected, sizeof bias);
    moert_router_update_bias(bias, (uint64_t[]){0, 0, 0, 0}, 4, 0.125f);
    assert_memory_equal(bias, expected, sizeof bias);
}

TEST(test_mass_sums_the_normalised_scores_of_each_sequence) {
    enum { T = 23, E = 19, S = 4 };
    static const uint32_t ends[S] = {5, 5, 17, 23}, last[1] = {6};
    float logits[T * E];
    for (int score = MOERT_SCORE_SOFTMAX; score <= MOERT_SCORE_SQRT_SOFTPLUS; score++) {
        const router_input input = {
            .options = router_options(E, 2, (moert_score)score), .tokens = T, .logits = logits};
        oracle_logits(&input.options, T, NULL, 1.0, 17, logits);
        logits[7 * E + 3] = NAN; /* a token with a NaN adds nothing to the sums */
        router_run run = router_do(&input);
        float *mass = router_mass(&input.options, T, run.scores, ends, S);
        for (size_t s = 0; s < S; s++) {
            double sum[E] = {0}, row[E], r[E];
            for (size_t t = s ? ends[s - 1] : 0; t < ends[s]; t++) {
                oracle_row(&input, t, row);
                oracle_normalised_scores(&input.options, row, r);
                for (size_t e = 0; t != 7 && e < E; e++)
                    sum[e] += r[e];
            }
            for (size_t e = 0; e < E; e++)
                assert_within((double)mass[s * E + e], sum[e], 5e-6);
        }
        /* the last sequence has the same bits in a batch without the other sequences */
        float *alone = router_mass(&input.options, 6, run.scores + 17 * E, last, 1);
        assert_memory_equal(alone, mass + 3 * E, E * 4);
    }
}

TEST(test_entropy_is_that_of_a_tokens_normalised_scores) {
    enum { T = 37, E = 19, K = 2, UNEVEN = 5 };
    float logits[T * E];
    for (int score = MOERT_SCORE_SOFTMAX; score <= MOERT_SCORE_SQRT_SOFTPLUS; score++) {
        const router_input input = {
            .options = router_options(E, K, (moert_score)score), .tokens = T, .logits = logits};
        oracle_logits(&input.options, T, NULL, 1.0, 41, logits);
        for (size_t e = 0; e < E; e++) {
            logits[3 * E + e] = 0.75f;                         /* all alike */
            logits[UNEVEN * E + e] = e == 11 ? 90.0f : -90.0f; /* one has all */
        }
        logits[7 * E + 3] = NAN;
        const float *entropy = router_entropy(&input.options, T, router_do(&input).scores);
        for (size_t t = 0; t < T; t++) {
            double row[E], r[E], sum = 0.0;
            oracle_row(&input, t, row);
            oracle_normalised_scores(&input.options, row, r);
            for (size_t e = 0; t != 7 && e < E; e++)
                sum -= r[e] > 0.0 ? r[e] * log(r[e]) : 0.0;
            assert_within((double)entropy[t], sum, 2e-6);
        }
        assert_within((double)entropy[3], log(E), 2e-6);
        assert_true(fabsf(entropy[UNEVEN]) < 1e-12f && entropy[7] == 0.0f);
    }
}

TEST(test_counts_are_those_of_the_largest_scores_of_each_sequence) {
    enum { T = 40, E = 37, K = 5, S = 5 };
    static const uint32_t ends[S] = {3, 3, 20, 39, 40};
    float logits[T * E];
    for (int score = MOERT_SCORE_SOFTMAX; score <= MOERT_SCORE_SQRT_SOFTPLUS; score++) {
        const router_input input = {
            .options = router_options(E, K, (moert_score)score), .tokens = T, .logits = logits};
        oracle_logits(&input.options, T, NULL, 1.0, 23, logits);
        router_run run = router_do(&input);
        uint32_t want[S * E] = {0};
        for (size_t t = 0, s = 0; t < T; t++) {
            while (t >= ends[s])
                s++;
            for (size_t k = 0; k < K; k++)
                want[s * E + (size_t)run.index[t * K + k]]++;
        }
        /* groups would forbid some of these experts */
        moert_router_options grouped = router_groups(input.options, E, K);
        grouped.group_best = 1;
        assert_memory_equal(router_counts(&grouped, T, run.scores, ends, S), want, sizeof want);
    }
    const moert_router_options options = router_options(3, 1, MOERT_SCORE_SOFTMAX);
    uint32_t *none = router_counts(&options, 0, NULL, (uint32_t[]){0, 0}, 2);
    for (int i = 0; i < 6; i++)
        assert_int_equal(none[i], 0);
}

/* Each sequence has its own gradients by the scores. */
TEST(test_backward_takes_the_gradients_of_each_sequence) {
    enum { T = 21, E = 24, K = 3, S = 4 };
    static const uint32_t ends[S] = {2, 2, 19, 21};
    float logits[T * E], dweight[T * K], aux[S * E];
    moert_rng_normals(31, 1, 0, 1.0, dweight, T * K);
    moert_rng_normals(31, 2, 0, 1.0, aux, S * E);
    for (int score = MOERT_SCORE_SOFTMAX; score <= MOERT_SCORE_SQRT_SOFTPLUS; score++) {
        router_input input = {.options = router_options(E, K, (moert_score)score),
                              .tokens = T,
                              .logits = logits,
                              .dweight = dweight,
                              .aux = aux,
                              .ends = ends,
                              .sequences = S};
        oracle_logits(&input.options, T, NULL, 1.0, 29, logits);
        router_run run = router_do(&input);
        input.ends = NULL;
        for (size_t s = 0; s < S; s++) {
            input.aux = aux + s * E;
            router_run alone = router_do(&input);
            for (size_t t = s ? ends[s - 1] : 0; t < ends[s]; t++)
                assert_memory_equal(run.dlogits + t * E, alone.dlogits + t * E, E * 4);
        }
    }
}

TEST(test_mass_of_no_tokens_is_zero) {
    const moert_router_options options = router_options(3, 1, MOERT_SCORE_SOFTMAX);
    float *mass = router_mass(&options, 0, NULL, (uint32_t[]){0, 0}, 2);
    for (int i = 0; i < 6; i++)
        assert_true(mass[i] == 0.0f);
}

TESTS(open_test_device, close_test_device)
