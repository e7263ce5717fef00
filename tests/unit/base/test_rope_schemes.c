// run: check=1 all=1san device=0
/* Frequencies of rotary schemes against values computed in float64 by the papers' formulas. */
#include "base/rope.h"
#include "support/test.h"

enum { MOST_PAIRS = 64, MOST_KNOWN = 8 };

/* A scheme and some of its frequencies. */
typedef struct scheme_case {
    const char *name;
    moert_rope_scheme scheme;
    size_t pair[MOST_KNOWN];
    double frequency[MOST_KNOWN]; /* of each pair; 0: no more */
} scheme_case;

/* of a scheme: type, interleaved, width, theta, factor, original */
static const scheme_case cases[] = {
    {"default", {.width = 8, .theta = 1e4}, {0, 1, 2, 3}, {1.0, 0.1, 0.01, 0.001}},
    {"linear",
     {MOERT_ROPE_LINEAR, false, 8, 1e4, .factor = 4.0},
     {0, 1, 2, 3},
     {0.25, 0.025, 0.0025, 0.00025}},
    {"YaRN with given betas",
     {MOERT_ROPE_YARN, false, 8, 100.0, 4.0, 64, .beta_fast = 4.0, .beta_slow = 1.0,
      .truncate = true},
     {0, 1, 2, 3},
     {1.0, 0.237170825, 0.05, 0.00790569415}},
    {"YaRN of gpt-oss",
     {MOERT_ROPE_YARN, false, 64, 150000.0, 32.0, 4096, .truncate = false},
     {0, 8, 9, 13, 17, 18, 31},
     {1.0, 0.0508132748, 0.0317056962, 0.00386035932, 0.000129318701, 3.83088124e-05,
      3.02351143e-07}},
    {"YaRN of DeepSeek-V3",
     {MOERT_ROPE_YARN, false, 64, 10000.0, 40.0, 4096, .truncate = true},
     {1, 10, 11, 16, 22, 23, 31},
     {0.749894209, 0.0562341325, 0.0390069266, 0.0055, 0.000177827941, 3.33380358e-05,
      3.33380358e-06}},
    {"YaRN with a ramp of one pair",
     {MOERT_ROPE_YARN, false, 4, 1e6, 8.0, 8, .truncate = true},
     {0, 1},
     {1.0, 0.000125}},
    {"llama3",
     {MOERT_ROPE_LLAMA3, false, 128, 500000.0, 8.0, 8192, .low_factor = 1.0, .high_factor = 4.0},
     {1, 28, 29, 32, 34, 35, 63},
     {0.814617234, 0.00321144599, 0.00216657076, 0.000524846161, 0.000178507813, 9.55621235e-05,
      3.06892599e-07}},
};

TEST(test_frequencies_follow_the_formulas) {
    for (size_t c = 0; c < MOERT_COUNT(cases); c++) {
        float got[MOST_PAIRS];
        ASSERT_OK(moert_rope_scheme_check(&cases[c].scheme));
        moert_rope_frequencies(&cases[c].scheme, got);
        for (size_t k = 0; k < MOST_KNOWN && cases[c].frequency[k] > 0.0; k++) {
            const size_t pair = cases[c].pair[k];
            const double want = cases[c].frequency[k];
            if (!(fabs((double)got[pair] - want) <= 5e-7 * want))
                fail_msg("%s, pair %zu: %.9g, not %.9g", cases[c].name, pair, (double)got[pair],
                         want);
        }
    }
}

TEST(test_attention_factor_is_given_or_follows_the_mscales) {
    moert_rope_scheme scheme = {.type = MOERT_ROPE_YARN, .factor = 32.0};
    assert_float_equal(moert_rope_attention_factor(&scheme), 1.3465735902799727, 1e-15);
    scheme.mscale = 0.707; /* alone it has no effect */
    assert_float_equal(moert_rope_attention_factor(&scheme), 1.3465735902799727, 1e-15);
    scheme.mscale_all_dim = 1.2;
    scheme.factor = 4.0;
    assert_float_equal(moert_rope_attention_factor(&scheme), 0.941403523749669, 1e-15);
    scheme.attention_factor = 0.75;
    assert_float_equal(moert_rope_attention_factor(&scheme), 0.75, 0.0);
    scheme.type = MOERT_ROPE_LINEAR;
    assert_float_equal(moert_rope_attention_factor(&scheme), 1.0, 0.0);
    assert_float_equal(moert_rope_mscale(0.5, 1.0), 1.0, 0.0);
    assert_float_equal(moert_rope_mscale(4.0, 1.2), 1.1663553233343869, 1e-15);
}

TEST(test_schemes_out_of_range_are_refused) {
    static const struct {
        moert_rope_scheme scheme;
        const char *message;
    } wrong[] = {
        {{.width = 0, .theta = 1e4}, "even width, not 0"},
        {{.width = 9, .theta = 1e4}, "even width, not 9"},
        {{.width = 8}, "theta above 0, not 0"},
        {{.width = 8, .theta = NAN}, "theta above 0, not nan"},
        {{MOERT_ROPE_YARN, false, 8, .theta = 1.0}, "theta above 1, not 1"},
        {{MOERT_ROPE_LINEAR, false, 8, .theta = 1e4}, "positive factor, not 0"},
        {{MOERT_ROPE_YARN, false, 8, 1e4, .factor = INFINITY}, "positive factor, not inf"},
        {{MOERT_ROPE_YARN, false, 8, 1e4, .factor = 2.0}, "original length"},
        {{MOERT_ROPE_YARN, false, 8, 1e4, 2.0, 8, .beta_fast = -1.0}, "betas, not -1 and 0"},
        {{MOERT_ROPE_LLAMA3, false, 8, 1e4, 2.0, 8, .low_factor = 4.0, .high_factor = 4.0},
         "low factor < high factor, not 4 and 4"},
    };
    for (size_t i = 0; i < MOERT_COUNT(wrong); i++)
        ASSERT_FAILS(moert_rope_scheme_check(&wrong[i].scheme), MOERT_ERROR_USAGE,
                     wrong[i].message);
}

TESTS(NULL, NULL)
