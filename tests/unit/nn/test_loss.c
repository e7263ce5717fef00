// run: check=1,1gpu all=1san
/* Cross-entropy against float64, and its gradient against central differences in float64. */
#include "base/dtype.h"
#include "nn/nn.h"
#include "support/test.h"

/* -log softmax(logits)[target] in float64. */
static double reference_loss(const double *logits, size_t vocabulary, size_t target) {
    double most = logits[0], sum = 0.0;
    for (size_t v = 1; v < vocabulary; v++)
        most = logits[v] > most ? logits[v] : most;
    for (size_t v = 0; v < vocabulary; v++)
        sum += exp(logits[v] - most);
    return log(sum) - (logits[target] - most);
}

typedef struct outcome {
    float *loss, *gradient; /* [T], [T,V] */
} outcome;

static outcome run(moert_dtype type, size_t tokens, size_t vocabulary, const int32_t *target,
                   const float *logits, float factor) {
    const moert_prediction p = {.tokens = tokens,
                                .vocabulary = vocabulary,
                                .target = upload(target, tokens * sizeof *target),
                                .factor = factor,
                                .type = type,
                                .logits = upload_floats(logits, tokens * vocabulary),
                                .loss = unset_floats(tokens)};
    ASSERT_OK(moert_cross_entropy(&p));
    return (outcome){download_floats(p.loss, tokens),
                     download_floats(p.logits, tokens * vocabulary)};
}

static void check(size_t tokens, size_t vocabulary, float scale) {
    const float factor = 0.125f;
    float *logits = random_floats(tokens * vocabulary, scale, vocabulary);
    int32_t *target = test_alloc(tokens * sizeof *target);
    for (size_t t = 0; t < tokens; t++)
        target[t] = (int32_t)((t * 7919 + vocabulary - 1) % vocabulary);
    outcome got = run(MOERT_DTYPE_F32, tokens, vocabulary, target, logits, factor);
    double *want = test_alloc(vocabulary * sizeof *want);
    for (size_t t = 0; t < tokens; t++) {
        const double *row = to_doubles(logits + t * vocabulary, vocabulary);
        size_t chosen = (size_t)target[t];
        double loss = reference_loss(row, vocabulary, chosen);
        assert_close("loss", &got.loss[t], &loss, 1, 2e-6 * (1.0 + (double)scale), 1e-6);
        for (size_t v = 0; v < vocabulary; v++)
            want[v] = (exp(row[v] - row[chosen] - loss) - (v == chosen)) * (double)factor;
        assert_close("gradient", got.gradient + t * vocabulary, want, vocabulary, 1e-7, 1e-5);
    }
}

TEST(test_loss_and_gradient_match_float64) {
    check(0, 16, 1.0f);
    check(3, 1, 5.0f);
    check(5, 15, 5.0f);
    check(5, 16, 5.0f);
    check(5, 17, 5.0f);
    check(3, 1024, 20.0f);
    check(3, 1041, 20.0f);
    check(2, 50000, 10.0f);
    check(2, 50257, 80.0f);
}

TEST(test_gradient_matches_differences) {
    enum { VOCABULARY = 37, TARGET = 36 };
    const int32_t target = TARGET;
    const double step = 1e-4;
    float *logits = random_floats(VOCABULARY, 3.0f, 9);
    double *row = to_doubles(logits, VOCABULARY), want[VOCABULARY];
    for (size_t v = 0; v < VOCABULARY; v++) {
        double middle = row[v];
        row[v] = middle + step;
        double above = reference_loss(row, VOCABULARY, TARGET);
        row[v] = middle - step;
        want[v] = (above - reference_loss(row, VOCABULARY, TARGET)) / (2.0 * step);
        row[v] = middle;
    }
    outcome got = run(MOERT_DTYPE_F32, 1, VOCABULARY, &target, logits, 1.0f);
    assert_close("gradient", got.gradient, want, VOCABULARY, 1e-6, 1e-5);
}

/* Without a target, a token has no loss and no gradient. With a factor of 0, the logits keep their
 * values. */
TEST(test_a_gradient_in_bf16_is_the_rounded_one_in_half_of_each_row) {
    enum { TOKENS = 4, IGNORED = 1 };
    static const size_t vocabularies[] = {1, 2, 17, 1024, 4097, 9000};
    for (size_t i = 0; i < MOERT_COUNT(vocabularies); i++) {
        const size_t v = vocabularies[i];
        const int32_t target[TOKENS] = {0, -1, (int32_t)v - 1, (int32_t)v / 2};
        float *logits = random_floats(TOKENS * v, 8.0f, 13), *zeros = test_alloc(v * sizeof *zeros);
        outcome full = run(MOERT_DTYPE_F32, TOKENS, v, target, logits, 0.37f);
        outcome rounded = run(MOERT_DTYPE_BF16, TOKENS, v, target, logits, 0.37f);
        outcome read_only = run(MOERT_DTYPE_F32, TOKENS, v, target, logits, 0.0f);
        const uint16_t *bf16 = (const uint16_t *)rounded.gradient;
        assert_same_bits("loss", rounded.loss, full.loss, TOKENS);
        assert_same_bits("loss alone", read_only.loss, full.loss, TOKENS);
        assert_same_bits("logits", read_only.gradient, logits, TOKENS * v);
        assert_same_bits("ignored loss", full.loss + IGNORED, zeros, 1);
        assert_same_bits("ignored gradient", full.gradient + IGNORED * v, zeros, v);
        for (size_t t = 0; t < TOKENS; t++)
            for (size_t c = 0; c < v; c++)
                assert_int_equal(bf16[t * 2 * v + c],
                                 moert_dtype_encode(MOERT_DTYPE_BF16, full.gradient[t * v + c]));
    }
}

TEST(test_bits_do_not_depend_on_the_position_of_the_row_or_of_equal_logits) {
    /* rows have an odd length, so they begin at any alignment */
    enum { TOKENS = 6, VOCABULARY = 1003, EQUAL = 45 };
    float *row = random_floats(VOCABULARY, 8.0f, 12);
    float *logits = test_alloc(TOKENS * VOCABULARY * sizeof *logits);
    int32_t target[TOKENS];
    for (size_t v = 0; v < EQUAL; v++)
        row[v] = 0.3f;
    for (size_t t = 0; t < TOKENS; t++) {
        memcpy(logits + t * VOCABULARY, row, VOCABULARY * sizeof *row);
        target[t] = 1001;
    }
    outcome got = run(MOERT_DTYPE_F32, TOKENS, VOCABULARY, target, logits, 0.37f);
    for (size_t t = 1; t < TOKENS; t++) {
        assert_same_bits("loss", got.loss, got.loss + t, 1);
        assert_same_bits("gradient", got.gradient, got.gradient + t * VOCABULARY, VOCABULARY);
    }
    for (size_t v = 1; v < EQUAL; v++)
        assert_same_bits("equal logits", got.gradient, got.gradient + v, 1);
}

TEST(test_extreme_logits_stay_finite_and_bad_ones_show) {
    enum { VOCABULARY = 18 };
    const int32_t target = 17, outside = VOCABULARY;
    const struct {
        float value;
        bool finite;
    } cases[] = {{1e30f, true}, {-1e30f, true}, {-INFINITY, true}, {INFINITY, false}, {NAN, false}};
    for (size_t i = 0; i < MOERT_COUNT(cases); i++) {
        float logits[VOCABULARY] = {0};
        logits[2] = cases[i].value;
        outcome got = run(MOERT_DTYPE_F32, 1, VOCABULARY, &target, logits, 1.0f);
        assert_int_equal(isfinite(got.loss[0]) != 0, cases[i].finite);
    }
    const float logits[VOCABULARY] = {0};
    outcome got = run(MOERT_DTYPE_F32, 1, VOCABULARY, &outside, logits, 0.0f);
    assert_true(isnan(got.loss[0]));
}

TESTS(open_test_device, close_test_device)
