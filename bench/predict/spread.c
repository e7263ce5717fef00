/* Expected spread of tokens over experts, ranks and nodes. */
#include "bench/predict/spread.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "plan/balance.h"

#define HOT_FRACTION 0.3 /* as in tokens.c */

/* ---- probabilities ---- */

/* The probability that none of a token's K experts is among `few` of the E: C(E - few, K) / C(E,
 * K). */
static double none_among(double few, double topk, double experts) {
    double none = 1.0;
    for (double k = 0.0; k < topk; k++)
        none *= fmax(experts - few - k, 0.0) / (experts - k);
    return none;
}

static double sum_of(const double *values, size_t count) {
    double sum = 0.0;
    for (size_t i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

/* inclusion[e] = 1 - exp(-rate / (e + 1)): experts are drawn by Zipf's law until there are K
 * distinct ones. */
static void fill_zipf(double rate, size_t experts, double *inclusion) {
    for (size_t e = 0; e < experts; e++)
        inclusion[e] = -expm1(-rate / (double)(e + 1));
}

/* Finds the rate at which sum(inclusion) = K, by bisection. */
static void include_zipf(size_t topk, size_t experts, double *inclusion) {
    double low = 0.0, high = 1e6;
    for (int i = 0; i < 200; i++) {
        const double rate = 0.5 * (low + high);
        fill_zipf(rate, experts, inclusion);
        if (sum_of(inclusion, experts) < (double)topk)
            low = rate;
        else
            high = rate;
    }
}

static void include(bench_skew skew, size_t topk, size_t experts, double *inclusion) {
    const double hot = fmin(1.0, HOT_FRACTION * (double)topk);
    for (size_t e = 0; e < experts; e++)
        inclusion[e] = skew == BENCH_BALANCED || experts == 1 ? (double)topk / (double)experts
                       : skew == BENCH_ONE                    ? (double)(e == 0)
                       : e == 0                               ? hot
                                : ((double)topk - hot) / (double)(experts - 1);
    if (skew == BENCH_ZIPF && topk < experts)
        include_zipf(topk, experts, inclusion);
    else if (skew == BENCH_ZIPF)
        fill_zipf(INFINITY, experts, inclusion);
}

/* Sorts inclusion[E] by the slots of a balanced placement. */
static moert_status balance(size_t experts, size_t ranks, double *inclusion) {
    static const double UNIT = 1e-9;
    moert_expert_map *map = NULL;
    uint64_t *rows = NULL;
    uint32_t *expert = NULL;
    double *sorted = NULL;
    moert_status status;
    MOERT_TRY_OR(release, moert_expert_map_create(experts, ranks, 1, 0, &map));
    MOERT_TRY_OR(release, MOERT_NEW_ARRAY(&rows, experts));
    MOERT_TRY_OR(release, MOERT_NEW_ARRAY(&expert, experts));
    MOERT_TRY_OR(release, MOERT_NEW_ARRAY(&sorted, experts));
    for (size_t e = 0; e < experts; e++)
        rows[e] = (uint64_t)(inclusion[e] / UNIT);
    MOERT_TRY_OR(release, moert_expert_map_balance(map, rows, false, expert));
    for (size_t slot = 0; slot < experts; slot++)
        sorted[slot] = inclusion[expert[slot]];
    memcpy(inclusion, sorted, experts * sizeof *sorted);
release:
    moert_expert_map_destroy(map);
    MOERT_FREE(rows, expert, sorted);
    return status;
}

/* ---- the largest of many ---- */

/* Blom's rule with 0.5264 instead of the median 0.5: within 1 % for 2 to 10000 values. */
double bench_largest_normal(size_t count) {
    const double wanted = pow(0.5264, 1.0 / (double)count);
    double low = 0.0, high = 10.0;
    if (count < 2)
        return 0.0;
    for (int i = 0; i < 100; i++) {
        const double z = 0.5 * (low + high);
        if (0.5 * erfc(-z / sqrt(2.0)) < wanted)
            low = z;
        else
            high = z;
    }
    return low;
}

/* Experts divided into consecutive groups: ranks, nodes, or single experts. */
typedef struct grouping {
    const double *inclusion;
    size_t experts, topk, tokens, groups;
} grouping;

static size_t first_of(const grouping *g, size_t group) {
    return group * g->experts / g->groups;
}

static double mean_of(const grouping *g, size_t group) {
    const size_t first = first_of(g, group);
    return sum_of(g->inclusion + first, first_of(g, group + 1) - first);
}

/* The standard deviation of a group's rows: each token makes K draws without replacement, each of
 * which falls into the group with probability mean / K. */
static double deviation_of(const grouping *g, double mean) {
    const double probability = mean / (double)g->topk, experts = (double)g->experts;
    const double left = experts > 1.0 ? (experts - (double)g->topk) / (experts - 1.0) : 0.0;
    return sqrt(fmax((double)g->topk * probability * (1.0 - probability) * left, 0.0) *
                (double)g->tokens);
}

/* The expected rows of the largest group over the mean. */
static double largest_of(const grouping *g) {
    double most = 0.0, all = 0.0;
    for (size_t i = 0; i < g->groups; i++) {
        all += mean_of(g, i);
        most = fmax(most, mean_of(g, i));
    }
    const double rows = most * (double)g->tokens, deviation = deviation_of(g, most);
    size_t rivals = 0;
    for (size_t i = 0; i < g->groups; i++)
        rivals += mean_of(g, i) * (double)g->tokens >= rows - deviation;
    return (rows + deviation * bench_largest_normal(rivals)) * (double)g->groups /
           (all * (double)g->tokens);
}

/* The expected number of distinct groups that a token's experts are in. */
static double distinct(const grouping *g, bool exact) {
    double sum = 0.0;
    for (size_t i = 0; i < g->groups; i++) {
        const size_t first = first_of(g, i), end = first_of(g, i + 1);
        double none = 1.0;
        for (size_t e = first; e < end; e++)
            none *= 1.0 - g->inclusion[e];
        sum += 1.0 - (exact ? none_among((double)(end - first), (double)g->topk, (double)g->experts)
                            : none);
    }
    return sum;
}

moert_status bench_spread_of(const bench_sharing *of, bench_spread *spread) {
    const bench_skew skew = of->skew;
    const size_t tokens = of->tokens, topk = of->topk, experts = of->experts, ep = of->ep,
                 nodes = of->nodes;
    double *inclusion;
    if (tokens == 0 || topk == 0 || topk > experts || ep == 0 || ep > experts || nodes == 0 ||
        nodes > ep)
        return MOERT_FAIL(ERROR_USAGE,
                          "no spread of %zu tokens, %zu of %zu experts each, over %zu ranks on %zu "
                          "nodes",
                          tokens, topk, experts, ep, nodes);
    MOERT_TRY(MOERT_NEW_ARRAY(&inclusion, experts));
    const size_t taken = skew == BENCH_ONE ? 1 : topk;
    include(skew, topk, experts, inclusion);
    const moert_status status = of->balanced ? balance(experts, ep, inclusion) : MOERT_OK;
    if (status != MOERT_OK) {
        free(inclusion);
        return status;
    }
    grouping g = {inclusion, experts, taken, tokens, ep};
    spread->pairs_rank = distinct(&g, skew == BENCH_BALANCED);
    spread->largest_rank = largest_of(&g);
    g.groups = nodes;
    spread->pairs_node = distinct(&g, skew == BENCH_BALANCED);
    g.groups = experts;
    spread->largest_expert = largest_of(&g);
    free(inclusion);
    return MOERT_OK;
}
