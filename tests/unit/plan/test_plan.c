// run: check=1 all=1san device=0
/* The plan, compared with brute force: all slots of simulated ranks, sorted by (expert, rank,
 * token). */
#include "base/rng.h"
#include "moert/plan.h"
#include "plan/expert_map.h"
#include "support/test.h"

enum { MAX_RANKS = 9 };

/* How a token of a case chooses its experts. */
typedef enum { RANDOM, ONE_EXPERT, LAST_EXPERTS, SOME_DROPPED, ALL_DROPPED } pattern;

typedef struct {
    const char *name;
    size_t experts, topk, ranks;
    size_t tokens[MAX_RANKS];
    pattern choice;
} plan_case;

static const plan_case cases[] = {
    {"one rank", 8, 2, 1, {50}, RANDOM},
    {"even", 8, 2, 4, {16, 16, 16, 16}, RANDOM},
    {"uneven experts", 7, 3, 3, {11, 5, 30}, RANDOM},
    {"empty ranks", 8, 2, 4, {0, 9, 0, 3}, RANDOM},
    {"no tokens at all", 6, 2, 3, {0, 0, 0}, RANDOM},
    {"one token", 5, 2, 4, {0, 0, 1, 0}, RANDOM},
    {"all to one expert", 8, 1, 4, {10, 20, 0, 7}, ONE_EXPERT},
    {"all to the last experts", 10, 3, 4, {10, 20, 0, 7}, LAST_EXPERTS},
    {"every expert chosen", 6, 6, 4, {4, 5, 6, 7}, RANDOM},
    {"some slots dropped", 9, 4, 2, {40, 33}, SOME_DROPPED},
    {"all slots dropped", 4, 2, 2, {5, 5}, ALL_DROPPED},
    {"fewer experts than ranks", 3, 2, 5, {6, 7, 8, 9, 10}, RANDOM},
    {"many ranks", 64, 8, 9, {1, 2, 3, 4, 5, 6, 7, 8, 9}, RANDOM},
    {"one expert", 1, 1, 3, {4, 0, 2}, RANDOM},
};

/* Draws K different experts for a token, without replacement. */
static void choose(const plan_case *c, size_t rank, size_t token, int32_t *slot) {
    int32_t deck[64];
    for (size_t e = 0; e < c->experts; e++)
        deck[e] = (int32_t)e;
    for (size_t k = 0; k < c->topk; k++) {
        double u = moert_rng_uniform(7, rank * 1000 + token, k);
        size_t pick = k + (size_t)(u * (double)(c->experts - k));
        if (c->choice == ONE_EXPERT)
            pick = c->experts / 2;
        if (c->choice == LAST_EXPERTS)
            pick = c->experts - 1 - k % 2 > k ? c->experts - 1 - k % 2 : k;
        int32_t taken = deck[pick];
        deck[pick] = deck[k];
        deck[k] = taken;
        bool drop = c->choice == ALL_DROPPED || (c->choice == SOME_DROPPED && u < 0.4);
        slot[k] = drop ? -1 : taken;
    }
}

typedef struct {
    int32_t *index[MAX_RANKS];
    uint64_t *counts;
    moert_plan *plan[MAX_RANKS];
} fixture;

static void destroy(void *plan) {
    moert_plan_destroy(plan);
}

static void build(const plan_case *c, fixture *f) {
    f->counts = test_alloc(c->ranks * c->experts * sizeof *f->counts);
    for (size_t r = 0; r < c->ranks; r++) {
        f->index[r] = test_alloc(c->tokens[r] * c->topk * sizeof *f->index[r]);
        for (size_t t = 0; t < c->tokens[r]; t++)
            choose(c, r, t, f->index[r] + t * c->topk);
        ASSERT_OK(moert_plan_count(f->index[r], c->tokens[r], c->topk, c->experts,
                                   f->counts + r * c->experts));
    }
    for (size_t r = 0; r < c->ranks; r++) {
        ASSERT_OK(
            moert_plan_create(&(moert_plan_shape){c->experts, c->ranks, r, c->tokens[r], c->topk},
                              f->index[r], f->counts, &f->plan[r]));
        owned(f->plan[r], destroy);
    }
}

/* Visits all slots in the order (expert, rank, token), which defines the order of rows. */
static void check_rows(const plan_case *c, const fixture *f) {
    size_t next_row[MAX_RANKS] = {0}, received[MAX_RANKS][MAX_RANKS] = {{0}};
    for (size_t e = 0; e < c->experts; e++) {
        size_t owner = moert_plan_owner(c->experts, c->ranks, e), before = next_row[owner];
        for (size_t r = 0; r < c->ranks; r++) {
            for (size_t s = 0; s < c->tokens[r] * c->topk; s++) {
                if (f->index[r][s] != (int32_t)e)
                    continue;
                assert_int_equal(f->plan[r]->slot_rank[s], owner);
                assert_int_equal(f->plan[r]->slot_row[s], next_row[owner]);
                next_row[owner]++;
                received[owner][r]++;
            }
        }
        const moert_plan *mine = f->plan[owner];
        assert_int_equal(mine->ends[e - mine->first_expert], next_row[owner]);
        assert_int_equal(mine->expert_counts[e], next_row[owner] - before);
    }
    size_t largest = 0;
    for (size_t r = 0; r < c->ranks; r++)
        largest = moert_max(largest, next_row[r]);
    for (size_t r = 0; r < c->ranks; r++) {
        assert_int_equal(f->plan[r]->rows, next_row[r]);
        assert_int_equal(f->plan[r]->largest_rows, largest);
        for (size_t other = 0; other < c->ranks; other++) {
            assert_int_equal(f->plan[r]->receive_rows[other], received[r][other]);
            assert_int_equal(f->plan[r]->send_rows[other], received[other][r]);
        }
    }
}

/* Positions number a rank's own rows 0, 1, 2, ... by (destination rank, destination row). */
static void check_positions(const plan_case *c, const moert_plan *plan) {
    size_t slots = plan->tokens * c->topk;
    for (size_t s = 0; s < slots; s++) {
        size_t position = 0;
        if (plan->slot_rank[s] == MOERT_PLAN_DROPPED) {
            assert_int_equal(plan->slot_row[s], MOERT_PLAN_DROPPED);
            assert_int_equal(plan->slot_position[s], MOERT_PLAN_DROPPED);
            continue;
        }
        for (size_t o = 0; o < slots; o++)
            if (plan->slot_rank[o] != MOERT_PLAN_DROPPED &&
                (plan->slot_rank[o] < plan->slot_rank[s] ||
                 (plan->slot_rank[o] == plan->slot_rank[s] &&
                  plan->slot_row[o] < plan->slot_row[s])))
                position++;
        assert_int_equal(plan->slot_position[s], position);
    }
}

TEST(test_plan_places_rows_by_expert_then_global_token) {
    for (size_t i = 0; i < MOERT_COUNT(cases); i++) {
        fixture f;
        build(&cases[i], &f);
        check_rows(&cases[i], &f);
        for (size_t r = 0; r < cases[i].ranks; r++)
            check_positions(&cases[i], f.plan[r]);
    }
}

/* ---- clones ---- */

enum { CLONED_RANKS = 3, CLONED_EXPERTS = 4, CLONED_SLOTS = 4, CLONED_TOKENS = 300 };

static void destroy_map(void *map) {
    moert_expert_map_destroy(map);
}

static moert_expert_map *new_map(size_t groups) {
    moert_expert_map *map;
    ASSERT_OK(moert_expert_map_create(CLONED_EXPERTS, CLONED_RANKS, groups, CLONED_SLOTS, &map));
    return owned(map, destroy_map);
}

/* Row n of an expert, over all ranks, is in the member whose range holds n, and there behind the
 * rows before it. Returns the largest number of an expert's rows that leave their rank. */
static size_t check_ranges(const moert_expert_map *map) {
    const plan_case c = {
        "clones", CLONED_EXPERTS, 2, CLONED_RANKS, {CLONED_TOKENS, 1, CLONED_TOKENS / 2}, RANDOM};
    moert_lane lanes[CLONED_RANKS * CLONED_EXPERTS];
    size_t most = 0;
    fixture f;
    build(&c, &f);
    for (size_t r = 0; r < CLONED_RANKS; r++) {
        const moert_plan_shape shape = {c.experts, c.ranks, r, c.tokens[r], c.topk};
        ASSERT_OK(moert_plan_create_placed(&shape, map, f.index[r], f.counts, lanes, &f.plan[r]));
        owned(f.plan[r], destroy);
        check_positions(&c, f.plan[r]);
    }
    for (size_t e = 0; e < c.experts; e++) {
        size_t nth = 0, member = 0, leave = 0;
        for (size_t r = 0; r < c.ranks; r++)
            for (size_t s = 0; s < c.tokens[r] * c.topk; s++) {
                if (f.index[r][s] != (int32_t)e)
                    continue;
                while (nth == moert_expert_map_cut(map, e, member + 1, f.counts))
                    member++;
                const size_t slot = moert_expert_map_find(map, e, member);
                const size_t rank = moert_expert_map_rank(map, slot),
                             local = slot - map->first[rank];
                const size_t before = local > 0 ? f.plan[rank]->ends[local - 1] : 0;
                const uint64_t first = moert_expert_map_cut(map, e, member, f.counts);
                assert_int_equal(first % 64, 0);
                assert_int_equal(f.plan[r]->slot_rank[s], rank);
                assert_int_equal(f.plan[r]->slot_row[s], before + nth - first);
                leave += rank != r;
                nth++;
            }
        assert_int_equal(nth, f.plan[0]->expert_counts[e]);
        assert_int_equal(moert_expert_map_cut(map, e, map->chain[e], f.counts), nth);
        most = moert_max(most, leave);
    }
    return most;
}

TEST(test_clones_share_the_rows_of_an_expert) {
    enum { CLONE = MOERT_EXPERT_CLONE, NONE = MOERT_NO_EXPERT };
    /* expert 1, of rank 0, has clones on both other ranks; expert 3, of rank 2, one on rank 0 */
    static const uint32_t expert[] = {0,         CLONE | 3, 1,         NONE, /* rank 0 */
                                      2,         NONE,      CLONE | 1, NONE, /* rank 1 */
                                      CLONE | 1, 3,         NONE,      NONE};
    moert_expert_map *map = new_map(1);
    ASSERT_OK(moert_expert_map_assign(map, expert));
    assert_int_equal(map->longest, 3);
    check_ranges(map);
}

TEST(test_replicas_compute_the_rows_of_their_groups) {
    const moert_expert_map *map = new_map(CLONED_RANKS);
    assert_int_equal(map->longest, CLONED_RANKS);
    assert_in_range(check_ranges(map), 1, 63 * (CLONED_RANKS - 1));
}

TEST(test_plan_gives_each_expert_one_owner_in_contiguous_blocks) {
    for (size_t experts = 1; experts <= 20; experts++) {
        for (size_t ranks = 1; ranks <= 24; ranks++) {
            size_t next = 0, largest = 0, smallest = experts;
            for (size_t r = 0; r < ranks; r++) {
                size_t first, count;
                moert_plan_experts(experts, ranks, r, &first, &count);
                assert_int_equal(first, next);
                for (size_t e = first; e < first + count; e++)
                    assert_int_equal(moert_plan_owner(experts, ranks, e), r);
                next += count;
                largest = moert_max(largest, count);
                smallest = moert_min(smallest, count);
            }
            assert_int_equal(next, experts);
            assert_true(largest - smallest <= 1);
        }
    }
    size_t first, count; /* of calls that make no sense */
    moert_plan_experts(4, 0, 0, &first, &count);
    assert_int_equal(count, 0);
    assert_int_equal(moert_plan_owner(4, 0, 1), 0);
    assert_int_equal(moert_plan_owner(4, 2, 4), 2);
}

TEST(test_plan_does_not_depend_on_the_number_of_ranks) {
    const plan_case whole = {"", 8, 2, 1, {48}, RANDOM};
    fixture f;
    build(&whole, &f);
    /* divides the same tokens among three ranks: every expert must get the same slots in the same
     * order */
    const size_t tokens[] = {20, 0, 28};
    uint64_t counts[3 * 8];
    for (size_t r = 0, t = 0; r < 3; t += tokens[r++])
        ASSERT_OK(moert_plan_count(f.index[0] + t * 2, tokens[r], 2, 8, counts + r * 8));
    for (size_t r = 0, t = 0; r < 3; t += tokens[r++]) {
        moert_plan *part;
        ASSERT_OK(moert_plan_create(&(moert_plan_shape){8, 3, r, tokens[r], 2}, f.index[0] + t * 2,
                                    counts, &part));
        for (size_t s = 0; s < tokens[r] * 2; s++) {
            size_t expert = (size_t)f.index[0][t * 2 + s], first, count, base = 0, whole_base = 0;
            moert_plan_experts(8, 3, part->slot_rank[s], &first, &count);
            for (size_t e = 0; e < expert; e++) {
                whole_base += f.counts[e];
                base += e >= first ? f.counts[e] : 0;
            }
            assert_int_equal(part->slot_row[s] - base, f.plan[0]->slot_row[t * 2 + s] - whole_base);
        }
        moert_plan_destroy(part);
    }
}

TEST(test_plan_count_names_the_bad_slot) {
    static const struct {
        int32_t index[6];
        moert_status status;
        const char *text;
    } rows[] = {
        {{0, 1, 2, 4, 1, 0}, MOERT_ERROR_USAGE, "token 1, slot 1: expert index 4 is outside -1..3"},
        {{0, 1, 2, 3, -3, 0}, MOERT_ERROR_USAGE, "token 2, slot 0: expert index -3"},
        {{0, 1, 2, 2, 1, 0}, MOERT_ERROR_USAGE, "token 1, slot 1: expert 2 is chosen twice"},
        {{0, 1, 2, 3, -2, -2}, MOERT_ERROR_NUMERIC, "token 2 has non-finite routing scores"},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        uint64_t counts[4] = {9, 9, 9, 9};
        ASSERT_FAILS(moert_plan_count(rows[i].index, 3, 2, 4, counts), rows[i].status,
                     rows[i].text);
        for (size_t e = 0; e < 4; e++)
            assert_int_equal(counts[e], 9);
    }
    const int32_t dropped_twice[] = {-1, -1, 3, -1};
    uint64_t counts[4];
    ASSERT_OK(moert_plan_count(dropped_twice, 2, 2, 4, counts));
    assert_int_equal(counts[3], 1);
    assert_int_equal(counts[0], 0);
}

TEST(test_plan_refuses_counts_that_do_not_fit_and_impossible_shapes) {
    static const int32_t index[] = {0, 1, 1, 2};
    static const uint64_t few[] = {1, 1, 1, 0}, many[] = {1, 2, 2, 0};
    /* rank 1 announces 2^32 slots for an expert of its own, so both ranks refuse the plan */
    static const uint64_t huge[] = {1, 0, 0, (uint64_t)1 << 32};
    const struct {
        moert_plan_shape shape;
        const uint64_t *counts;
        moert_status status;
        const char *text;
    } rows[] = {
        {{3, 1, 0, 2, 2}, few, MOERT_ERROR_MISMATCH, ""},
        {{3, 1, 0, 2, 2}, many, MOERT_ERROR_MISMATCH, ""},
        {{2, 1, 0, 2, 2}, few, MOERT_ERROR_MISMATCH, ""},
        {{2, 2, 0, 1, 1}, huge, MOERT_ERROR_UNSUPPORTED, "rank 1 would receive 4294967296 rows"},
        {{2, 2, 1, 0, 1}, huge, MOERT_ERROR_UNSUPPORTED, ""},
        {{1, 0, 0, 1, 1}, few, MOERT_ERROR_USAGE, "a plan of"},
        {{1, 1, 1, 1, 1}, few, MOERT_ERROR_USAGE, "a plan of"},
        {{SIZE_MAX, 2, 0, 1, 1}, few, MOERT_ERROR_USAGE, "a plan of"},
        {{1, 1, 0, SIZE_MAX, 2}, few, MOERT_ERROR_USAGE, "a plan of"},
        {{1, 1, 0, 1, 1}, NULL, MOERT_ERROR_USAGE, "counts is NULL"},
    };
    moert_plan *plan = NULL;
    for (size_t i = 0; i < MOERT_COUNT(rows); i++)
        ASSERT_FAILS(moert_plan_create(&rows[i].shape, index, rows[i].counts, &plan),
                     rows[i].status, rows[i].text);
    ASSERT_FAILS(moert_plan_create(NULL, index, few, &plan), MOERT_ERROR_USAGE, "shape is NULL");
    ASSERT_FAILS(moert_plan_create(&(moert_plan_shape){1, 1, 0, 1, 1}, index, few, NULL),
                 MOERT_ERROR_USAGE, "plan is NULL");
    ASSERT_FAILS(moert_plan_count(NULL, 1, 1, 1, (uint64_t[1]){0}), MOERT_ERROR_USAGE,
                 "index is NULL");
    assert_null(plan);
    moert_plan_destroy(NULL);
}

TESTS(NULL, NULL)
