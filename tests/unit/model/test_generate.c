// run: check=1 all=1san device=0
/* Draws of tokens from logits, compared with probabilities computed by hand. */
#include <math.h>

#include "model/generate.h"
#include "support/test.h"

enum { COUNT = 5, DRAWS = 2000 };
/* probabilities at temperature 1: 0.1, 0.4, 0.2, 0.2, 0.1 */
static const double probability[COUNT] = {0.1, 0.4, 0.2, 0.2, 0.1};

TEST(test_draws_have_the_probabilities_of_the_kept_tokens) {
    static const struct {
        double temperature;
        size_t top_k;
        double top_p;
        double expected[COUNT];
    } rows[] = {
        {1.0, 0, 1.0, {0.1, 0.4, 0.2, 0.2, 0.1}},
        {0.5, 0, 1.0, {0.01 / 0.26, 0.16 / 0.26, 0.04 / 0.26, 0.04 / 0.26, 0.01 / 0.26}},
        {1.0, 2, 1.0, {0, 0.4 / 0.6, 0.2 / 0.6, 0, 0}}, /* equal logits: the smaller number */
        {1.0, 1, 1.0, {0, 1, 0, 0, 0}},
        {1.0, 9, 1.0, {0.1, 0.4, 0.2, 0.2, 0.1}},
        {1.0, 0, 0.55, {0, 0.4 / 0.6, 0.2 / 0.6, 0, 0}},
        {1.0, 0, 0.0, {0, 1, 0, 0, 0}},
        {1.0, 3, 0.6, {0, 0.4 / 0.6, 0.2 / 0.6, 0, 0}}, /* top_p of the three that are left */
        {0.0, 0, 1.0, {0, 1, 0, 0, 0}},
    };
    float logits[COUNT];
    int32_t order[COUNT];
    for (int i = 0; i < COUNT; i++)
        logits[i] = (float)log(probability[i]);
    logits[3] = logits[2];
    logits[4] = logits[0];
    for (size_t r = 0; r < MOERT_COUNT(rows); r++) {
        const moert_sampling how = {rows[r].temperature, rows[r].top_k, rows[r].top_p, 1};
        double drawn[COUNT] = {0};
        for (int i = 0; i < DRAWS; i++) /* evenly spaced numbers instead of random ones */
            drawn[moert_sample_token(&how, logits, COUNT, (i + 0.5) / DRAWS, order)] += 1.0 / DRAWS;
        for (int i = 0; i < COUNT; i++)
            if (fabs(drawn[i] - rows[r].expected[i]) > 1.5 / DRAWS)
                fail_msg("row %zu, token %d: %g, expected %g", r, i, drawn[i], rows[r].expected[i]);
    }
}

TEST(test_the_first_of_equal_logits_is_the_most_likely) {
    const float logits[COUNT] = {-1, 3, 3, 3, 0};
    int32_t order[COUNT];
    const moert_sampling greedy = {0.0, 0, 1.0, 1};
    assert_int_equal(moert_sample_token(&greedy, logits, COUNT, 0.99, order), 1);
}

TESTS(NULL, NULL)
