// run: check=1 all=1san device=0
/* Numbers of the host: elementary functions, frequencies of rotary schemes, and the fixed tree of
 * sums. */
#include "base/elementary.h"
#include "base/rng.h"
#include "base/rope.h"
#include "base/tree.h"
#include "support/test.h"

/* ---- elementary functions against the C library's in long double ---- */

enum { COUNT = 200000 };

/* Uniform in [low, high). */
static double draw(double low, double high, size_t i) {
    return low + (high - low) * moert_rng_uniform(7, 1, i);
}

/* The distance from `want` in units of a float64 in the last place. */
static double error_of(double got, long double want) {
    if (want == 0.0L)
        return got == 0.0 ? 0.0 : INFINITY;
    return (double)(fabsl((long double)got - want) / ldexpl(1.0L, (int)ilogbl(want) - 52));
}

TEST(test_functions_are_within_their_bounds) {
    static const struct {
        const char *name;
        double (*function)(double);
        long double (*oracle)(long double);
        double low, high, bound;
    } rows[] = {
        {"exp", moert_exp, expl, -700.0, 709.0, 1.5}, {"exp", moert_exp, expl, -1.0, 1.0, 1.5},
        {"log", moert_log, logl, 0.0, 1e-300, 2.0},   {"log", moert_log, logl, 0.0, 1e9, 2.0},
        {"log", moert_log, logl, 0.5, 2.0, 2.5},      {"cos", moert_cos, cosl, 0.0, 6.3, 2.0},
        {"cos", moert_cos, cosl, -1e9, 1e9, 2.0},     {"sin", moert_sin, sinl, -6.3, 6.3, 2.0},
        {"sin", moert_sin, sinl, -1e9, 1e9, 2.0},
    };
    for (size_t r = 0; r < MOERT_COUNT(rows); r++) {
        double worst = 0.0;
        for (size_t i = 0; i < COUNT; i++) {
            const double x = draw(rows[r].low, rows[r].high, i);
            worst = fmax(worst, error_of(rows[r].function(x), rows[r].oracle((long double)x)));
        }
        print_message("# %s in [%g, %g): within %.2f ulp\n", rows[r].name, rows[r].low,
                      rows[r].high, worst);
        assert_true(worst <= rows[r].bound);
    }
}

TEST(test_powers_of_frequencies_and_decays_are_far_within_float32) {
    for (size_t i = 0; i < COUNT; i++) {
        const double theta = draw(1.0, 5e6, i), exponent = draw(0.0, 1.0, i + 1);
        const long double want = powl((long double)theta, (long double)exponent);
        assert_true(fabsl((long double)moert_pow(theta, exponent) - want) <= 1e-14L * want);
        const double beta = 1.0 - draw(0.0, 0.5, i), steps = (double)(i + 1);
        const long double rest = 1.0L - powl((long double)beta, (long double)steps);
        assert_true(fabsl(1.0L - (long double)moert_pow(beta, steps) - rest) <= 3e-16L);
    }
}

TEST(test_special_values) {
    assert_true(moert_exp(0.0) == 1.0 && moert_exp(-INFINITY) == 0.0);
    assert_true(isinf(moert_exp(INFINITY)) && isinf(moert_exp(710.0)) && isnan(moert_exp(NAN)));
    assert_true(moert_exp(-745.0) == 0x1p-1074 && moert_exp(-746.0) == 0.0);
    assert_true(moert_log(1.0) == 0.0 && moert_log(0.0) == -INFINITY && isnan(moert_log(-1.0)));
    assert_true(isinf(moert_log(INFINITY)) && isnan(moert_log(NAN)));
    assert_true(moert_pow(0.0, 3.0) == 0.0 && moert_pow(0.0, 0.0) == 1.0);
    assert_true(moert_pow(1.0, 1e9) == 1.0 && moert_pow(5.0, 0.0) == 1.0);
    assert_true(moert_cos(0.0) == 1.0 && moert_sin(0.0) == 0.0);
    assert_true(isnan(moert_cos(INFINITY)) && isnan(moert_sin(NAN)));
}

/* ---- rotary schemes against values computed in float64 by the papers' formulas ---- */

enum { MOST_PAIRS = 64, MOST_KNOWN = 8 };

/* Rotary schemes and some of their frequencies. The fields of a scheme are type, interleaved,
 * width, theta, factor and original. */
static const struct {
    const char *name;
    moert_rope_scheme scheme;
    size_t pair[MOST_KNOWN];
    double frequency[MOST_KNOWN]; /* the frequency of each pair; 0 ends the list */
} cases[] = {
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
    scheme.mscale = 0.707; /* mscale without mscale_all_dim has no effect */
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
        {{MOERT_ROPE_YARN, false, 8, 1e4, .factor = 2.0}, "original context length"},
        {{MOERT_ROPE_YARN, false, 8, 1e4, 2.0, 8, .beta_fast = -1.0}, "betas, not -1 and 0"},
        {{MOERT_ROPE_LLAMA3, false, 8, 1e4, 2.0, 8, .low_factor = 4.0, .high_factor = 4.0},
         "low factor < high factor, not 4 and 4"},
    };
    for (size_t i = 0; i < MOERT_COUNT(wrong); i++)
        ASSERT_FAILS(moert_rope_scheme_check(&wrong[i].scheme), MOERT_ERROR_USAGE,
                     wrong[i].message);
}

/* ---- sums: any partition of the leaves gives the bits of the full tree ---- */

enum { MOST_LEAVES = 33, N = 3 };

/* Values whose sum depends on the order: magnitudes over 12 binary orders. */
static void fill(float *rows, size_t first, size_t count) {
    for (size_t i = 0; i < count * N; i++) {
        uint64_t index = first * N + i;
        double scale = (double)(1u << (index * 7 % 13));
        rows[i] = (float)(moert_rng_normal(5, 1, index) * scale);
    }
}

/* Computes the value of a node by recursion, following the definition in base/tree.h. */
static float node_value(const float *leaves, size_t total, size_t first, size_t width, size_t i) {
    if (width == 1)
        return leaves[first * N + i];
    float left = node_value(leaves, total, first, width / 2, i);
    if (first + width / 2 >= total)
        return left;
    return left + node_value(leaves, total, first + width / 2, width / 2, i);
}

/* Appends the nodes of a span to `nodes`, and their rows to `rows`. Sums each node in place, into
 * the row of the node's first leaf. The subtree below a node has the shape of a tree over only the
 * leaves of that node. */
static size_t reduce(moert_span span, float *leaves, moert_tree_node *nodes, float **rows) {
    const size_t count = moert_tree_nodes(span, nodes), end = span.first + span.count;
    for (size_t k = 0; k < count; k++) {
        const size_t size = moert_min(nodes[k].width, end - nodes[k].first);
        moert_tree_node single[MOST_LEAVES];
        float *leaf[MOST_LEAVES];
        for (size_t i = 0; i < size; i++) {
            single[i] = (moert_tree_node){i, 1};
            leaf[i] = leaves + (nodes[k].first - span.first + i) * N;
        }
        rows[k] = leaf[0];
        moert_tree_sum_nodes(size, single, leaf, size, rows[k], N);
    }
    return count;
}

TEST(test_every_partition_in_two_gives_the_bits_of_the_full_tree) {
    float leaves[MOST_LEAVES * N], sum[N], *rows[2 * MOERT_TREE_MAX_NODES];
    moert_tree_node nodes[2 * MOERT_TREE_MAX_NODES];
    for (size_t total = 1, width = 1; total <= MOST_LEAVES; total++) {
        width *= width < total ? 2 : 1;
        for (size_t cut = 0; cut <= total; cut++) {
            float whole[MOST_LEAVES * N];
            fill(whole, 0, total);
            fill(leaves, 0, total);
            size_t count = reduce((moert_span){0, cut, total}, leaves, nodes, rows);
            count += reduce((moert_span){cut, total - cut, total}, leaves + cut * N, nodes + count,
                            rows + count);
            moert_tree_sum_nodes(total, nodes, rows, count, sum, N);
            for (size_t i = 0; i < N; i++)
                assert_true(sum[i] == node_value(whole, total, 0, width, i));
        }
    }
}

/* Joins rows as moert_tree_append says; the nodes and the bits must be those of reduce() for the
 * span. Each node begins where the previous one ends; only the last node may extend past the last
 * leaf of the tree. */
static void check_span(moert_span span) {
    moert_tree_node nodes[MOERT_TREE_MAX_NODES], expected[MOERT_TREE_MAX_NODES];
    float leaves[MOST_LEAVES * N], sums[MOST_LEAVES * N], *rows[MOST_LEAVES];
    size_t depth = 0, next = span.first, end = span.first + span.count;
    fill(leaves, span.first, span.count);
    for (size_t i = 0; i < span.count; i++) {
        size_t top = depth;
        memcpy(sums + top * N, leaves + i * N, N * sizeof *sums);
        moert_tree_append(nodes, &depth, (moert_tree_node){span.first + i, 1}, span.total);
        for (; top >= depth; top--)
            for (size_t k = 0; k < N; k++)
                sums[(top - 1) * N + k] += sums[top * N + k];
    }
    assert_int_equal(reduce(span, leaves, expected, rows), depth);
    for (size_t k = 0; k < depth; k++) {
        assert_int_equal(nodes[k].first, next);
        assert_int_equal(nodes[k].width & (nodes[k].width - 1), 0);
        assert_int_equal(nodes[k].first % nodes[k].width, 0);
        next += nodes[k].width;
        assert_memory_equal(&nodes[k], &expected[k], sizeof nodes[k]);
        assert_memory_equal(sums + k * N, rows[k], N * sizeof *sums);
    }
    assert_true(next == end || (end == span.total && next >= end));
}

TEST(test_nodes_cover_a_span_from_left_to_right_as_do_leaves_appended_one_by_one) {
    for (size_t total = 1; total <= MOST_LEAVES; total++)
        for (size_t first = 0; first <= total; first++)
            for (size_t count = 0; first + count <= total; count++)
                check_span((moert_span){first, count, total});
}

TEST(test_a_tree_without_leaves_sums_to_zero) {
    float sum[N] = {1, 2, 3}, zero[N] = {0};
    moert_tree_sum_nodes(0, NULL, NULL, 0, sum, N);
    assert_memory_equal(sum, zero, sizeof sum);
}

TESTS(NULL, NULL)
