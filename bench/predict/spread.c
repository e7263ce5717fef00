/* Computes the expected spread of tokens over experts, ranks and nodes. */
#include "bench/predict/spread.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "plan/balance.h"

/* ---- probabilities ---- */

/* The probability that none of a token's K experts is among `few` given experts of the E: C(E -
 * few, K) / C(E, K). */
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

/* inclusion[e] = 1 - exp(-rate / (e + 1)^exponent): experts are drawn by Zipf's law until there are
 * K distinct ones. */
static void fill_zipf(double rate, size_t experts, double exponent, double *inclusion) {
    for (size_t e = 0; e < experts; e++)
        inclusion[e] = -expm1(-rate / pow((double)(e + 1), exponent));
}

/* Finds the rate at which sum(inclusion) = K, by bisection. */
static void include_zipf(size_t topk, size_t experts, double exponent, double *inclusion) {
    double low = 0.0, high = 1e6 * pow((double)experts, exponent);
    for (int i = 0; i < 200; i++) {
        const double rate = 0.5 * (low + high);
        fill_zipf(rate, experts, exponent, inclusion);
        if (sum_of(inclusion, experts) < (double)topk)
            low = rate;
        else
            high = rate;
    }
}

static void include(bench_skew skew, size_t topk, size_t experts, double *inclusion) {
    const double hot = fmin(1.0, skew.amount * (double)topk);
    for (size_t e = 0; e < experts; e++)
        inclusion[e] = skew.kind == BENCH_BALANCED || experts == 1 ? (double)topk / (double)experts
                       : skew.kind == BENCH_ONE                    ? (double)(e == 0)
                       : e == 0                                    ? hot
                                : ((double)topk - hot) / (double)(experts - 1);
    if (skew.kind == BENCH_ZIPF && topk < experts)
        include_zipf(topk, experts, skew.amount, inclusion);
    else if (skew.kind == BENCH_ZIPF)
        fill_zipf(INFINITY, experts, skew.amount, inclusion);
}

/* ---- places ---- */

/* share[slots] = the probability that a token uses the slot. Slots are ordered by rank. */
typedef struct places {
    double *share;
    size_t slots, clones;
} places;

/* Fills `places` for a placement of experts. An expert and its clones divide the expert's rows
 * equally. */
static void fill_places(const moert_expert_map *map, const double *inclusion, places *p) {
    p->clones = 0;
    for (size_t slot = 0; slot < p->slots; slot++) {
        const uint32_t e = moert_expert_map_at(map, slot);
        p->share[slot] = e != MOERT_NO_EXPERT ? inclusion[e] / (double)map->chain[e] : 0.0;
        p->clones += e != map->expert[slot];
    }
}

/* Balances the expected rows of a placement's ranks. */
static moert_status balance(moert_expert_map *map, bool clones, const double *inclusion) {
    static const double UNIT = 1e-9;
    uint64_t *rows = NULL;
    uint32_t *expert = NULL;
    moert_status status;
    MOERT_TRY_OR(release, MOERT_NEW_ARRAY(&rows, map->experts));
    MOERT_TRY_OR(release, MOERT_NEW_ARRAY(&expert, moert_expert_map_slots(map)));
    for (size_t e = 0; e < map->experts; e++)
        rows[e] = (uint64_t)(inclusion[e] / UNIT);
    MOERT_TRY_OR(release, moert_expert_map_balance(map, rows, clones, expert));
    status = moert_expert_map_assign(map, expert);
release:
    MOERT_FREE(rows, expert);
    return status;
}

static moert_status place(const bench_sharing *of, places *p) {
    const size_t share = moert_ceil_div(of->experts, of->ep),
                 slots = of->clones > 0 ? moert_min(share + of->clones, of->experts) : 0;
    moert_expert_map *map = NULL;
    double *inclusion = NULL;
    moert_status status;
    MOERT_TRY_OR(release, MOERT_NEW_ARRAY(&inclusion, of->experts));
    include(of->skew, of->topk, of->experts, inclusion);
    MOERT_TRY_OR(release, moert_expert_map_create(of->experts, of->ep, 1, slots, &map));
    if (of->balanced)
        MOERT_TRY_OR(release, balance(map, of->clones > 0, inclusion));
    p->slots = moert_expert_map_slots(map);
    MOERT_TRY_OR(release, MOERT_NEW_ARRAY(&p->share, p->slots));
    fill_places(map, inclusion, p);
release:
    moert_expert_map_destroy(map);
    free(inclusion);
    return status;
}

/* ---- the expected maximum of many values ---- */

/* Uses Blom's rule with 0.5264 in place of 0.5. The result is within 1 % for 2 to 10000 values. */
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

/* Slots divided into consecutive groups: ranks, nodes, or single slots. */
typedef struct grouping {
    const places *places;
    size_t experts, topk, tokens, groups;
} grouping;

static size_t first_of(const grouping *g, size_t group) {
    return group * g->places->slots / g->groups;
}

static double mean_of(const grouping *g, size_t group) {
    const size_t first = first_of(g, group);
    return sum_of(g->places->share + first, first_of(g, group + 1) - first);
}

/* The standard deviation of a group's rows: each token makes K draws without replacement, each of
 * which falls into the group with probability mean / K. */
static double deviation_of(const grouping *g, double mean) {
    const double probability = mean / (double)g->topk, experts = (double)g->experts;
    const double left = experts > 1.0 ? (experts - (double)g->topk) / (experts - 1.0) : 0.0;
    return sqrt(fmax((double)g->topk * probability * (1.0 - probability) * left, 0.0) *
                (double)g->tokens);
}

/* The expected rows of the group with the most rows, divided by the mean over the groups. */
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

/* The expected number of distinct groups that contain experts of a token. */
static double distinct(const grouping *g, bool exact) {
    double sum = 0.0;
    for (size_t i = 0; i < g->groups; i++) {
        const size_t first = first_of(g, i), end = first_of(g, i + 1);
        double none = 1.0;
        for (size_t e = first; e < end; e++)
            none *= 1.0 - g->places->share[e];
        sum += 1.0 - (exact ? none_among((double)(end - first), (double)g->topk, (double)g->experts)
                            : none);
    }
    return sum;
}

moert_status bench_spread_of(const bench_sharing *of, bench_spread *spread) {
    const size_t tokens = of->tokens, topk = of->topk, experts = of->experts, ep = of->ep,
                 nodes = of->nodes;
    if (tokens == 0 || topk == 0 || topk > experts || ep == 0 || ep > experts || nodes == 0 ||
        nodes > ep)
        return MOERT_FAIL(
            ERROR_USAGE,
            "cannot spread %zu tokens with %zu of %zu experts each over %zu ranks on %zu nodes",
            tokens, topk, experts, ep, nodes);
    places p = {.share = NULL};
    MOERT_TRY(place(of, &p));
    const bool even = of->skew.kind == BENCH_BALANCED;
    grouping g = {&p, experts, of->skew.kind == BENCH_ONE ? 1 : topk, tokens, ep};
    spread->pairs_rank = distinct(&g, even);
    spread->largest_rank = largest_of(&g);
    g.groups = nodes;
    spread->pairs_node = distinct(&g, even);
    g.groups = p.slots;
    spread->largest_expert = largest_of(&g) * (double)experts / (double)p.slots;
    spread->clones = (double)p.clones / (double)ep;
    free(p.share);
    return MOERT_OK;
}
