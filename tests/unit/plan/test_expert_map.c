// run: np=1 device=0 sanitize=1
/* Placements of experts: their checks, and those that balance the ranks' rows. */
#include "base/memory.h"
#include "base/rng.h"
#include "plan/balance.h"
#include "support/test.h"

static void destroy(void *map) {
    moert_expert_map_destroy(map);
}

static moert_expert_map *new_map(size_t experts, size_t ranks, size_t slots) {
    moert_expert_map *map;
    ASSERT_OK(moert_expert_map_create(experts, ranks, slots, &map));
    return owned(map, destroy);
}

TEST(test_a_map_begins_with_contiguous_blocks) {
    for (size_t experts = 1; experts < 12; experts++)
        for (size_t ranks = 1; ranks < 14; ranks++)
            for (size_t spare = 0; spare < 3; spare++) {
                const size_t slots = spare > 0 ? moert_ceil_div(experts, ranks) + spare - 1 : 0;
                const moert_expert_map *map = new_map(experts, ranks, slots);
                for (size_t e = 0; e < experts; e++) {
                    const size_t rank = moert_plan_owner(experts, ranks, e);
                    size_t first, count;
                    moert_plan_experts(experts, ranks, rank, &first, &count);
                    assert_int_equal(map->rank[e], rank);
                    assert_int_equal(map->slot[e], e - first);
                    assert_int_equal(map->expert[map->first[rank] + map->slot[e]], e);
                    assert_int_equal(moert_expert_map_slots_of(map, rank),
                                     slots > 0 ? slots : count);
                }
                assert_int_equal(moert_expert_map_most(map), moert_ceil_div(experts, ranks));
            }
}

TEST(test_slots_that_do_not_hold_the_experts_are_refused) {
    moert_expert_map *map;
    ASSERT_FAILS(moert_expert_map_create(9, 4, 2, &map), MOERT_ERROR_USAGE,
                 "2 slots on each of 4 ranks do not hold 9 experts");
}

/* ---- balance ---- */

/* rows / mean of the busiest rank after balancing; checks that the placement is whole. */
static double balance(const moert_expert_map *map, const uint64_t *rows) {
    const size_t slots = moert_expert_map_slots(map);
    uint32_t *expert = test_alloc(slots * sizeof *expert);
    uint64_t sum = 0;
    ASSERT_OK(moert_expert_map_balance(map, rows, expert));
    moert_expert_map *copy;
    ASSERT_OK(moert_expert_map_copy(map, &copy));
    owned(copy, destroy);
    ASSERT_OK(moert_expert_map_assign(copy, expert));
    for (size_t e = 0; e < map->experts; e++)
        sum += rows[e];
    const uint64_t most = moert_expert_map_busiest(map, expert, rows);
    assert_true(most <= moert_expert_map_busiest(map, map->expert, rows));
    return (double)most * (double)map->ranks / (double)sum;
}

TEST(test_loads_of_zipf_are_balanced) {
    for (size_t k = 1; k <= 8; k++) {
        uint64_t rows[64];
        const moert_expert_map *map = new_map(64, 4, 17);
        for (size_t e = 0; e < 64; e++) /* in any order */
            rows[e] = 1000000 / (1 + (e * 37 + k) % 64);
        assert_true(balance(map, rows) <= 1.05);
    }
}

TEST(test_balanced_loads_stay) {
    const moert_expert_map *map = new_map(12, 4, 4);
    uint64_t rows[12];
    uint32_t expert[16];
    for (size_t e = 0; e < 12; e++)
        rows[e] = 7;
    ASSERT_OK(moert_expert_map_balance(map, rows, expert));
    assert_memory_equal(expert, map->expert, sizeof expert);
    memset(rows, 0, sizeof rows);
    ASSERT_OK(moert_expert_map_balance(map, rows, expert));
    assert_memory_equal(expert, map->expert, sizeof expert);
}

/* The busiest rank's rows in the best of all placements of `left` experts, by brute force. */
static uint64_t best_of_all(const uint64_t *rows, size_t left, size_t ranks, size_t slots,
                            uint64_t *load, size_t *held) {
    uint64_t best = UINT64_MAX;
    if (left == 0) {
        best = 0;
        for (size_t r = 0; r < ranks; r++)
            best = load[r] > best ? load[r] : best;
        return best;
    }
    for (size_t r = 0; r < ranks; r++) {
        if (held[r] == slots)
            continue;
        load[r] += rows[left - 1];
        held[r]++;
        const uint64_t found = best_of_all(rows, left - 1, ranks, slots, load, held);
        best = found < best ? found : best;
        load[r] -= rows[left - 1];
        held[r]--;
    }
    return best;
}

/* A local search is not the optimum, but near to it. */
TEST(test_placements_are_near_the_best) {
    for (size_t seed = 0; seed < 50; seed++) {
        enum { EXPERTS = 9, RANKS = 3, SLOTS = 4 };
        const moert_expert_map *map = new_map(EXPERTS, RANKS, SLOTS);
        uint64_t rows[EXPERTS], load[RANKS] = {0}, sum = 0;
        size_t held[RANKS] = {0};
        for (size_t e = 0; e < EXPERTS; e++) {
            rows[e] = (uint64_t)(1000.0 * moert_rng_uniform(seed, 1, e));
            sum += rows[e];
        }
        const double best = (double)best_of_all(rows, EXPERTS, RANKS, SLOTS, load, held);
        assert_true(balance(map, rows) <= 1.1 * best * RANKS / (double)sum);
    }
}

TESTS(NULL, NULL)
