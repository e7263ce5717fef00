// run: check=1 all=1san device=0
/* The plans of simulated ranks, compared with the routing that routing.h computes by brute
 * force. */
#include "plan/expert_map.h"
#include "support/exchange/routing.h"

/* More shapes than those of routing.h. */
static const shape more[] = {
    {"all to the last two", 10, 3, 1, {10, 20, 0, 7}, LAST_TWO, 30},
    {"many ranks", 64, 8, 1, {1, 2, 3, 4, 5, 6, 7, 8, 9}, RANDOM, 31},
    {"one expert", 1, 1, 1, {4, 0, 2}, RANDOM, 32},
};

/* The plans of all ranks for a shape's routing. */
typedef struct fixture {
    routing routing;
    uint64_t *counts; /* [R,E] */
    moert_plan *plan[MOST_RANKS];
} fixture;

/* Makes plans of contiguous blocks of experts, or of a placement. */
static fixture build(const shape *c, size_t ranks, const moert_expert_map *map) {
    fixture f = {.routing = route_shape(c, ranks)};
    const size_t *first = f.routing.first_token;
    f.counts = test_alloc(ranks * c->experts * sizeof *f.counts);
    for (size_t r = 0; r < ranks; r++)
        ASSERT_OK(moert_plan_count(f.routing.index + first[r] * c->topk, c->tokens[r], c->topk,
                                   c->experts, f.counts + r * c->experts));
    for (size_t r = 0; r < ranks; r++) {
        const moert_plan_shape own = {c->experts, ranks, r, c->tokens[r], c->topk};
        const int32_t *index = f.routing.index + first[r] * c->topk;
        moert_lane *lanes = test_alloc(ranks * c->experts * sizeof *lanes);
        ASSERT_OK(map == NULL
                      ? moert_plan_create(&own, index, f.counts, &f.plan[r])
                      : moert_plan_create_placed(&own, map, index, f.counts, lanes, &f.plan[r]));
        owned(f.plan[r], moert_plan_destroy);
    }
    return f;
}

static void check_rows(const shape *c, size_t ranks, const fixture *f) {
    const routing *r = &f->routing;
    size_t largest = 0, moved[MOST_RANKS][MOST_RANKS] = {{0}}; /* from, to */
    for (size_t rank = 0; rank < ranks; rank++) {
        largest = moert_max(largest, r->first_row[rank + 1] - r->first_row[rank]);
        for (size_t s = r->first_token[rank] * c->topk, own = 0;
             s < r->first_token[rank + 1] * c->topk; s++, own++) {
            assert_int_equal(f->plan[rank]->slot_rank[own], r->place[s][0]);
            assert_int_equal(f->plan[rank]->slot_row[own], r->place[s][1]);
            if (r->index[s] >= 0)
                moved[rank][r->place[s][0]]++;
        }
    }
    for (size_t rank = 0; rank < ranks; rank++) {
        const moert_plan *plan = f->plan[rank];
        const size_t first = r->first_row[rank], end = r->first_row[rank + 1];
        size_t row = first;
        assert_int_equal(plan->rows, end - first);
        assert_int_equal(plan->largest_rows, largest);
        for (size_t e = 0; e < plan->local_experts; e++) {
            const size_t before = row, expert = plan->first_expert + e;
            while (row < end && (size_t)r->index[r->slot[row]] == expert)
                row++;
            assert_int_equal(plan->ends[e], row - first);
            assert_int_equal(plan->expert_counts[expert], row - before);
        }
        for (size_t other = 0; other < ranks; other++) {
            assert_int_equal(plan->receive_rows[other], moved[other][rank]);
            assert_int_equal(plan->send_rows[other], moved[rank][other]);
        }
    }
}

/* Positions number a rank's own rows 0, 1, 2, ... by (destination rank, destination row). */
static void check_positions(const shape *c, const moert_plan *plan) {
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

static void check_shape(const shape *c, size_t ranks) {
    const fixture f = build(c, ranks, NULL);
    check_rows(c, ranks, &f);
    for (size_t r = 0; r < ranks; r++)
        check_positions(c, f.plan[r]);
}

/* Tokens are numbered over all ranks, so the order of an expert's rows is the same on any number of
 * ranks. */
TEST(test_plan_places_rows_by_expert_then_global_token) {
    for (size_t ranks = 1; ranks <= MOST_RANKS; ranks += ranks < 4 ? 1 : 5) {
        for (size_t i = 0; i < SHAPES; i++)
            check_shape(&shapes[i], ranks);
        for (size_t i = 0; i < MOERT_COUNT(more); i++)
            check_shape(&more[i], ranks);
    }
}

/* ---- clones ---- */

enum { CLONED_RANKS = 3, CLONED_EXPERTS = 4, CLONED_SLOTS = 4 };

static moert_expert_map *new_map(size_t groups) {
    moert_expert_map *map;
    ASSERT_OK(moert_expert_map_create(CLONED_EXPERTS, CLONED_RANKS, groups, CLONED_SLOTS, &map));
    return owned(map, moert_expert_map_destroy);
}

/* An expert's rows are numbered over all ranks. Checks that row n is on the slot whose range
 * contains n, behind the earlier rows of that range. Returns the largest number of an expert's rows
 * that leave their rank. */
static size_t check_ranges(const moert_expert_map *map) {
    const shape c = {"clones", CLONED_EXPERTS, 2, 1, {300, 1, 150}, RANDOM, 7};
    const fixture f = build(&c, CLONED_RANKS, map);
    size_t most = 0;
    for (size_t r = 0; r < CLONED_RANKS; r++)
        check_positions(&c, f.plan[r]);
    for (size_t e = 0; e < c.experts; e++) {
        size_t nth = 0, member = 0, leave = 0;
        for (size_t r = 0; r < CLONED_RANKS; r++)
            for (size_t s = 0; s < c.tokens[r] * c.topk; s++) {
                if (f.routing.index[f.routing.first_token[r] * c.topk + s] != (int32_t)e)
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
    /* expert 1 of rank 0 has clones on both other ranks; expert 3 of rank 2 has a clone on rank
     * 0 */
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
