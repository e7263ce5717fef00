// run: check=1 all=1san device=0
/* Placements of experts: the checks of a placement, and the placement that balances the ranks'
 * rows. */
#include "base/rng.h"
#include "plan/balance.h"
#include "support/test.h"

static moert_expert_map *new_groups(size_t experts, size_t ranks, size_t groups, size_t slots) {
    moert_expert_map *map;
    ASSERT_OK(moert_expert_map_create(experts, ranks, groups, slots, &map));
    return owned(map, moert_expert_map_destroy);
}

static moert_expert_map *new_map(size_t experts, size_t ranks, size_t slots) {
    return new_groups(experts, ranks, 1, slots);
}

/* Checks that a map's slots of a rank begin with the experts [first, first + count). */
static void check_block(const moert_expert_map *map, size_t rank, size_t first, size_t count) {
    for (size_t e = first; e < first + count; e++) {
        assert_int_equal(map->rank[e], rank);
        assert_int_equal(map->slot[e], e - first);
        assert_int_equal(map->expert[map->first[rank] + map->slot[e]], e);
    }
}

TEST(test_contiguous_blocks_of_experts_differ_by_at_most_one) {
    for (size_t experts = 1; experts <= 20; experts++)
        for (size_t ranks = 1; ranks <= 24; ranks++) {
            const size_t fewest = experts / ranks, most = moert_ceil_div(experts, ranks);
            const moert_expert_map *maps[] = {new_map(experts, ranks, 0),
                                              new_map(experts, ranks, most),
                                              new_map(experts, ranks, most + 1)};
            size_t next = 0;
            for (size_t r = 0; r < ranks; r++) {
                size_t first, count;
                moert_plan_experts(experts, ranks, r, &first, &count);
                assert_int_equal(first, next);
                assert_in_range(count, fewest, most);
                for (size_t e = first; e < first + count; e++)
                    assert_int_equal(moert_plan_owner(experts, ranks, e), r);
                for (size_t m = 0; m < MOERT_COUNT(maps); m++) {
                    check_block(maps[m], r, first, count);
                    assert_int_equal(moert_expert_map_slots_of(maps[m], r),
                                     m > 0 ? most + m - 1 : count);
                    assert_int_equal(moert_expert_map_most(maps[m]), most);
                }
                next += count;
            }
            assert_int_equal(next, experts);
        }
    size_t first, count; /* results of calls with senseless arguments */
    moert_plan_experts(4, 0, 0, &first, &count);
    assert_int_equal(count, 0);
    assert_int_equal(moert_plan_owner(4, 0, 1), 0);
    assert_int_equal(moert_plan_owner(4, 2, 4), 2);
}

TEST(test_each_group_has_all_experts) {
    enum { EXPERTS = 7, RANKS = 6, GROUPS = 3, SIZE = RANKS / GROUPS };
    for (size_t slots = 0; slots < 6; slots += 5) {
        const moert_expert_map *map = new_groups(EXPERTS, RANKS, GROUPS, slots);
        size_t own[RANKS] = {0};
        for (size_t e = 0; e < EXPERTS; e++) {
            assert_int_equal(map->chain[e], GROUPS);
            for (size_t m = 0; m < GROUPS; m++) {
                const size_t rank = moert_expert_map_rank(map, moert_expert_map_find(map, e, m));
                assert_int_equal(rank, m * SIZE + moert_plan_owner(EXPERTS, SIZE, e));
            }
            own[map->rank[e]]++;
        }
        for (size_t r = 0; r < RANKS; r++)
            assert_in_range(own[r], EXPERTS / RANKS, EXPERTS / RANKS + 1);
    }
}

TEST(test_groups_and_slots_that_lack_an_expert_are_refused) {
    moert_expert_map *map = new_groups(2, 2, 2, 3);
    uint32_t expert[] = {0, MOERT_EXPERT_CLONE | 1, MOERT_NO_EXPERT,
                         1, MOERT_EXPERT_CLONE | 0, MOERT_NO_EXPERT};
    ASSERT_OK(moert_expert_map_assign(map, expert));
    expert[1] = MOERT_NO_EXPERT;
    ASSERT_FAILS(moert_expert_map_assign(map, expert), MOERT_ERROR_USAGE,
                 "must hold each expert exactly once");
    expert[1] = MOERT_EXPERT_CLONE | 1;
    expert[4] = MOERT_NO_EXPERT;
    ASSERT_FAILS(moert_expert_map_assign(map, expert), MOERT_ERROR_USAGE,
                 "slots for only 1 of 2 experts in each group");
    ASSERT_FAILS(moert_expert_map_create(9, 4, 1, 2, &map), MOERT_ERROR_USAGE,
                 "2 slots on each of 4 ranks do not hold 9 experts");
}

/* ---- balance ---- */

/* Returns the balanced placement of a map, expert[slots]. */
static uint32_t *balanced(const moert_expert_map *map, const uint64_t *rows, bool clones) {
    uint32_t *expert = test_alloc(moert_expert_map_slots(map) * sizeof *expert);
    ASSERT_OK(moert_expert_map_balance(map, rows, clones, expert));
    return expert;
}

/* Balances the placement and checks that it is complete. Returns the busiest rank's rows divided by
 * the mean. */
static double balance(const moert_expert_map *map, const uint64_t *rows, bool clones) {
    const uint32_t *expert = balanced(map, rows, clones);
    moert_expert_map *copy;
    ASSERT_OK(moert_expert_map_copy(map, &copy));
    owned(copy, moert_expert_map_destroy);
    ASSERT_OK(moert_expert_map_assign(copy, expert));
    const double load = moert_expert_map_load(map, expert, rows);
    assert_true(load <= moert_expert_map_load(map, map->expert, rows));
    return load;
}

TEST(test_loads_of_zipf_are_balanced) {
    for (size_t k = 1; k <= 8; k++) {
        uint64_t rows[64];
        const moert_expert_map *map = new_map(64, 4, 17);
        for (size_t e = 0; e < 64; e++) /* in any order */
            rows[e] = 1000000 / (1 + (e * 37 + k) % 64);
        assert_true(balance(map, rows, false) <= 1.05);
    }
}

/* Assigns the balanced placement; returns whether the placement changed. */
static bool rebalance(moert_expert_map *map, const uint64_t *rows, bool clones) {
    const uint32_t *expert = balanced(map, rows, clones);
    const bool same =
        memcmp(expert, map->expert, moert_expert_map_slots(map) * sizeof *expert) == 0;
    ASSERT_OK(moert_expert_map_assign(map, expert));
    return !same;
}

TEST(test_balanced_loads_stay_and_few_experts_move) {
    enum { EXPERTS = 64, RANKS = 4, SLOTS = EXPERTS + RANKS };
    const moert_expert_map *map = new_map(EXPERTS, RANKS, SLOTS / RANKS);
    uint64_t rows[EXPERTS];
    size_t moved = 0;
    for (int equal = 2; equal >= 0;
         equal--) { /* equal = 0: the experts' rows differ, but each rank has nearly the mean */
        for (size_t e = 0; e < EXPERTS; e++)
            rows[e] = equal == 2 ? 0 : equal == 1 ? 7 : 1000 + e * 37 % 64;
        assert_memory_equal(balanced(map, rows, false), map->expert, SLOTS * sizeof *map->expert);
    }
    rows[0] += 4000; /* rank 0 has a sixth more than the mean */
    assert_true(balance(map, rows, false) <= 1.05);
    const uint32_t *expert = balanced(map, rows, false);
    for (size_t s = 0; s < SLOTS; s++)
        moved += expert[s] != MOERT_NO_EXPERT && expert[s] != map->expert[s];
    assert_in_range(moved, 1, 4);
}

TEST(test_experts_go_to_the_node_of_their_tokens) {
    enum { EXPERTS = 16, RANKS = 4, NODES = 2 };
    static const uint32_t node[RANKS] = {0, 0, 1, 1};
    const moert_expert_map *map = new_map(EXPERTS, RANKS, EXPERTS / RANKS);
    uint64_t rows[EXPERTS], from[NODES][EXPERTS];
    const moert_row_sources sources = {NODES, node, from[0]};
    for (int even = 0; even < 2; even++) {
        /* node e % 2 sends 9 of 10 rows of expert e; if `even`, half of the expert's rows */
        for (size_t e = 0; e < EXPERTS; e++) {
            rows[e] = 1000 + e * 37 % 64;
            from[e % 2][e] = even ? rows[e] / 2 : rows[e] * 9 / 10;
            from[1 - e % 2][e] = rows[e] - from[e % 2][e];
        }
        uint32_t *expert = balanced(map, rows, false);
        assert_within(moert_expert_map_crossing(map, expert, &sources), 0.5, 0.01);
        ASSERT_OK(moert_expert_map_gather(map, rows, &sources, expert));
        if (even)
            assert_memory_equal(expert, map->expert, EXPERTS * sizeof *expert);
        else
            assert_within(moert_expert_map_crossing(map, expert, &sources), 0.1, 0.01);
        assert_true(moert_expert_map_load(map, expert, rows) <= 1.03);
    }
}

TEST(test_hot_experts_get_clones) {
    enum { EXPERTS = 64, RANKS = 4 };
    const moert_expert_map *map = new_map(EXPERTS, RANKS, EXPERTS / RANKS + 2);
    uint64_t rows[EXPERTS];
    for (unsigned hot = 1; hot <= 20; hot++) { /* one expert has 4 to 80 % of all rows */
        for (size_t e = 0; e < EXPERTS; e++)
            rows[e] = 1000 + (e * 37 + hot) % 64;
        rows[hot] = (EXPERTS - 1) * 1000 * hot / (25 - hot);
        assert_true(balance(map, rows, true) <= 1.05);
    }
}

TEST(test_clones_end_when_they_are_off_or_not_needed) {
    for (int off = 0; off < 2; off++) {
        moert_expert_map *map = new_map(8, 4, 4);
        uint64_t rows[8] = {900, 10, 10, 10, 10, 10, 10, 10};
        assert_true(rebalance(map, rows, true));
        assert_int_equal(map->chain[0], 4);
        /* expert 0 has 100 of 170 rows: each of three slots would have 33 rows, but half of a
         * rank's mean is 21 */
        rows[0] = off ? 900 : 100;
        assert_int_equal(rebalance(map, rows, !off), off);
        /* expert 0 has 10 of 80 rows: each of two slots would have 5 rows, but half of a rank's
         * mean is 10 */
        rows[0] = off ? 900 : 10;
        assert_int_equal(rebalance(map, rows, !off), !off);
        assert_int_equal(map->longest, 1);
    }
}

/* Tries all placements of `left` experts; returns the smallest possible number of rows on the
 * busiest rank. */
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

/* Balancing is a local search; its result need not be the optimum, but must be near it. */
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
        assert_true(balance(map, rows, false) <= 1.1 * best * RANKS / (double)sum);
    }
}

TESTS(NULL, NULL)
