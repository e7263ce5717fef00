// run: check=1 all=1san
/* The order of a blend: proportions that are exact to one sequence at every step. */
#include "data/blend.h"

#include "support/test.h"

enum { MOST = 64 };

/* Counts the sequences of each source, and compares at each place. */
static void check(const char *const *weights, size_t count, size_t sequences) {
    uint64_t weight[MOST], sum = 0, used[MOST] = {0};
    moert_blend *blend;
    for (size_t i = 0; i < count; i++) {
        ASSERT_OK(moert_blend_weight(atof(weights[i]), weights[i], &weight[i]));
        sum += weight[i];
    }
    ASSERT_OK(moert_blend_create(weight, count, &blend));
    for (size_t n = 0; n < sequences; n++) {
        const moert_blend_turn turn = moert_blend_at(blend, n);
        assert_true(turn.source < count && turn.number == used[turn.source]);
        used[turn.source]++;
        for (size_t i = 0; i < count; i++) {
            const double share = (double)(n + 1) * (double)weight[i] / (double)sum;
            assert_true(fabs((double)used[i] - share) < 1.0);
            if (n % 97 == 0 && n < 10000)
                assert_true(moert_blend_count(blend, i, n + 1) == used[i]);
        }
    }
    moert_blend_destroy(blend);
}

TEST(test_proportions_are_exact_to_one_sequence) {
    check((const char *const[]){"1"}, 1, 10);
    check((const char *const[]){"0.7", "0.3"}, 2, 1000);
    check((const char *const[]){"0.5", "0.25", "0.125", "0.125"}, 4, 1000);
    check((const char *const[]){"0.9", "0.05", "0.03", "0.01", "0.01"}, 5, 3000);
    check((const char *const[]){"3", "1", "7", "2.5"}, 4, 3000);
    check((const char *const[]){"0.000001", "0.999999"}, 2, 2100000);
}

TEST(test_many_sources) {
    char text[MOST][16];
    const char *weights[MOST];
    for (size_t i = 0; i < MOST; i++) {
        snprintf(text[i], sizeof text[i], "%zu.%zu", i % 7 + 1, i * 37 % 10);
        weights[i] = text[i];
    }
    check(weights, MOST, 10000);
}

TEST(test_wrong_weights_are_refused) {
    static const char *const wrong[] = {"0",         "-1",      "0.1234567", "nan",
                                        "0.0000001", "1000001", "inf"};
    const uint64_t uneven[] = {1234567, 7654321};
    uint64_t weight;
    moert_blend *blend;
    for (size_t i = 0; i < MOERT_COUNT(wrong); i++)
        ASSERT_FAILS(moert_blend_weight(atof(wrong[i]), wrong[i], &weight), MOERT_ERROR_USAGE,
                     wrong[i]);
    ASSERT_FAILS(moert_blend_create(uneven, 2, &blend), MOERT_ERROR_USAGE, "rounder weights");
}

TESTS(NULL, NULL)
