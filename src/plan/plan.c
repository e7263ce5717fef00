/*
 * Counts and offsets of an exchange; moert/plan.h has the formula. Works only on integers in host
 * memory. The caller supplies the counts of the other ranks.
 */
#include "moert/plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "plan/expert_map.h"

enum { NOT_FINITE = -2, DROPPED = -1 };

/* Checks a slot's expert. last_token[E] holds 1 + the last token that chose the expert. */
static moert_status check_slot(int32_t expert, size_t token, size_t slot, size_t experts,
                               size_t *last_token) {
    if (expert == DROPPED)
        return MOERT_OK;
    if (expert == NOT_FINITE)
        return MOERT_FAIL(ERROR_NUMERIC, "token %zu has non-finite routing scores", token);
    if (expert < 0 || (size_t)expert >= experts)
        return MOERT_FAIL(ERROR_USAGE,
                          "token %zu, slot %zu: expert index %d is outside -1..%lld (-1 drops the "
                          "slot)",
                          token, slot, (int)expert, (long long)experts - 1);
    if (last_token[expert] == token + 1)
        return MOERT_FAIL(ERROR_USAGE, "token %zu, slot %zu: expert %d is chosen twice", token,
                          slot, (int)expert);
    last_token[expert] = token + 1;
    return MOERT_OK;
}

moert_status moert_plan_count(const int32_t *index, size_t tokens, size_t topk, size_t experts,
                              uint64_t *counts) {
    size_t *last_token;
    moert_status status;
    MOERT_REQUIRE(counts);
    if (index == NULL && tokens > 0 && topk > 0)
        return MOERT_FAIL(ERROR_USAGE, "moert_plan_count: index is NULL");
    MOERT_TRY(moert_alloc(&last_token, experts, sizeof *last_token));
    for (size_t t = 0; t < tokens; t++)
        for (size_t k = 0; k < topk; k++)
            MOERT_TRY_OR(free_last, check_slot(index[t * topk + k], t, k, experts, last_token));
    memset(counts, 0, experts * sizeof *counts);
    for (size_t s = 0; s < tokens * topk; s++)
        if (index[s] >= 0)
            counts[index[s]]++;
    status = MOERT_OK;
free_last:
    free(last_token);
    return status;
}

/* The rows [first, end) of an expert, over all ranks, that a slot receives; none if the slot is
 * empty. */
typedef struct range {
    uint64_t first, end;
} range;

static range rows_of(const moert_plan *plan, size_t slot) {
    const moert_expert_map *placement = plan->placement;
    const uint32_t e = moert_expert_map_at(placement, slot);
    if (e == MOERT_NO_EXPERT)
        return (range){0, 0};
    if (placement->chain[e] == 1)
        return (range){0, plan->expert_counts[e]};
    const size_t position = placement->position[slot];
    return (range){moert_expert_map_cut(placement, e, position, plan->counts),
                   moert_expert_map_cut(placement, e, position + 1, plan->counts)};
}

/* How many of the rows [before, before + count) are in a range. */
static uint64_t count_common(range in, uint64_t before, uint64_t count) {
    const uint64_t first = in.first > before ? in.first : before,
                   end = in.end < before + count ? in.end : before + count;
    return first < end ? end - first : 0;
}

uint64_t moert_plan_slot_rows(const moert_plan *plan, size_t rank, size_t slot) {
    const uint32_t e = moert_expert_map_at(plan->placement, slot);
    uint64_t before = 0;
    if (e == MOERT_NO_EXPERT)
        return 0;
    if (plan->placement->chain[e] == 1)
        return plan->counts[rank * plan->experts + e];
    for (size_t r = 0; r < rank; r++)
        before += plan->counts[r * plan->experts + e];
    return count_common(rows_of(plan, slot), before, plan->counts[rank * plan->experts + e]);
}

/* Places the rows of a slot of rank `owner` after the owner's first *rows rows. Sets the lane of
 * this rank's rows for the slot, which begins at *position; advances *rows and *position. */
static void lay_out_slot(moert_plan *plan, size_t owner, size_t slot, uint64_t *rows,
                         uint64_t *position, moert_lane *lanes) {
    const size_t e = moert_expert_map_at(plan->placement, slot);
    const range all = rows_of(plan, slot);
    uint64_t before = 0;
    for (size_t r = 0; e != MOERT_NO_EXPERT && r < plan->ranks; r++) {
        const uint64_t count = plan->counts[r * plan->experts + e],
                       part = count_common(all, before, count);
        before += count;
        if (r == plan->rank) {
            lanes[plan->placement->position[slot] * plan->experts + e] =
                (moert_lane){(uint32_t)owner, *rows, *position, part};
            *position += part;
            plan->send_rows[owner] += part;
        }
        if (owner == plan->rank)
            plan->receive_rows[r] += part;
        *rows += part;
    }
}

/*
 * Walks over the ranks' slots in order. Computes totals, ends, the sums per rank, and the lanes of
 * each expert from plan->counts[ranks,E].
 */
static moert_status lay_out(moert_plan *plan, moert_lane *lanes) {
    const moert_expert_map *placement = plan->placement;
    uint64_t position = 0;
    for (size_t i = 0; i < plan->ranks * plan->experts; i++)
        plan->expert_counts[i % plan->experts] += plan->counts[i];
    for (size_t owner = 0; owner < plan->ranks; owner++) {
        uint64_t rows = 0;
        for (size_t s = 0; s < moert_expert_map_slots_of(placement, owner); s++) {
            lay_out_slot(plan, owner, placement->first[owner] + s, &rows, &position, lanes);
            if (owner == plan->rank) {
                plan->ends[s] = (uint32_t)rows;
                plan->starts[s] = (uint32_t)rows_of(plan, placement->first[owner] + s).first;
            }
        }
        if (rows >= UINT32_MAX)
            return MOERT_FAIL(ERROR_UNSUPPORTED,
                              "rank %zu would receive %llu rows; the limit is %u", owner,
                              (unsigned long long)rows, UINT32_MAX - 1);
        if (owner == plan->rank)
            plan->rows = rows;
        plan->largest_rows = moert_max(plan->largest_rows, rows);
    }
    return MOERT_OK;
}

/* Finds the lane that takes this rank's row number *nth for an expert; *nth becomes the row's index
 * in that lane. NULL if the counts have no such row. */
static const moert_lane *find_lane(const moert_plan *plan, const moert_lane *lanes, size_t expert,
                                   uint64_t *nth) {
    for (size_t member = 0; member < plan->placement->chain[expert]; member++) {
        const moert_lane *lane = &lanes[member * plan->experts + expert];
        if (*nth < lane->rows)
            return lane;
        *nth -= lane->rows;
    }
    return NULL;
}

/* Gives each slot the next row of its expert's lanes, so rows stay in token order. taken[E] must be
 * 0 on entry. */
static moert_status place_slots(moert_plan *plan, const int32_t *index, const moert_lane *lanes,
                                uint64_t *taken) {
    for (size_t s = 0; s < plan->tokens * plan->topk; s++) {
        plan->slot_rank[s] = plan->slot_row[s] = plan->slot_position[s] = MOERT_PLAN_DROPPED;
        if (index[s] == DROPPED)
            continue;
        const moert_lane *lane = NULL;
        uint64_t nth = 0;
        if (index[s] >= 0 && (size_t)index[s] < plan->experts) {
            nth = taken[index[s]]++;
            lane = find_lane(plan, lanes, (size_t)index[s], &nth);
        }
        if (lane == NULL)
            return MOERT_FAIL(ERROR_MISMATCH,
                              "rank %zu: slot %zu goes to expert %d, which the counts of this rank "
                              "do not cover",
                              plan->rank, s, (int)index[s]);
        plan->slot_rank[s] = lane->rank;
        plan->slot_row[s] = (uint32_t)(lane->row + nth);
        plan->slot_position[s] = (uint32_t)(lane->position + nth);
    }
    for (size_t e = 0; e < plan->experts; e++)
        if (taken[e] < plan->counts[plan->rank * plan->experts + e])
            return MOERT_FAIL(
                ERROR_MISMATCH,
                "rank %zu: the counts announce %llu slots of expert %zu that the index does not "
                "hold",
                plan->rank,
                (unsigned long long)(plan->counts[plan->rank * plan->experts + e] - taken[e]), e);
    return MOERT_OK;
}

static moert_status check_shape(const moert_plan_shape *shape) {
    const size_t slots = SIZE_MAX / sizeof(uint64_t);
    if (shape->ranks == 0 || shape->rank >= shape->ranks)
        return MOERT_FAIL(ERROR_USAGE, "a plan of rank %zu needs more than %zu ranks", shape->rank,
                          shape->ranks);
    if (shape->experts > slots / shape->ranks ||
        (shape->topk > 0 && shape->tokens > slots / shape->topk))
        return MOERT_FAIL(ERROR_USAGE,
                          "a plan of %zu experts and %zu slots for each of %zu tokens exceeds the "
                          "address space",
                          shape->experts, shape->topk, shape->tokens);
    return MOERT_OK;
}

moert_status moert_plan_create_placed(const moert_plan_shape *shape,
                                      const moert_expert_map *placement, const int32_t *index,
                                      const uint64_t *counts, moert_lane *lanes,
                                      moert_plan **plan) {
    const size_t experts = shape->experts, ranks = shape->ranks;
    moert_plan *made;
    moert_status status;
    uint64_t *taken = NULL;
    size_t count;
    MOERT_TRY(MOERT_NEW(&made));
    *made = (moert_plan){.experts = experts,
                         .ranks = ranks,
                         .rank = shape->rank,
                         .tokens = shape->tokens,
                         .topk = shape->topk,
                         .local_experts = moert_expert_map_slots_of(placement, shape->rank)};
    moert_plan_experts(experts, ranks, shape->rank, &made->first_expert, &count);
    MOERT_TRY_OR(destroy_plan, moert_expert_map_copy(placement, &made->placement));
    MOERT_TRY_OR(destroy_plan, MOERT_NEW_ARRAY(&made->counts, ranks * experts));
    MOERT_TRY_OR(destroy_plan, MOERT_NEW_ARRAY(&made->expert_counts, experts));
    MOERT_TRY_OR(destroy_plan, MOERT_NEW_ARRAY(&made->ends, made->local_experts));
    MOERT_TRY_OR(destroy_plan, MOERT_NEW_ARRAY(&made->starts, made->local_experts));
    MOERT_TRY_OR(destroy_plan, MOERT_NEW_ARRAY(&made->send_rows, ranks));
    MOERT_TRY_OR(destroy_plan, MOERT_NEW_ARRAY(&made->receive_rows, ranks));
    memcpy(made->counts, counts, ranks * experts * sizeof *counts);
    MOERT_TRY_OR(destroy_plan, lay_out(made, lanes));
    if (index != NULL) {
        const size_t slots = made->tokens * made->topk;
        MOERT_TRY_OR(destroy_plan, MOERT_NEW_ARRAY(&made->slot_rank, slots));
        MOERT_TRY_OR(destroy_plan, MOERT_NEW_ARRAY(&made->slot_row, slots));
        MOERT_TRY_OR(destroy_plan, MOERT_NEW_ARRAY(&made->slot_position, slots));
        MOERT_TRY_OR(destroy_plan, MOERT_NEW_ARRAY(&taken, experts));
        MOERT_TRY_OR(destroy_plan, place_slots(made, index, lanes, taken));
    }
    *plan = made;
    free(taken);
    return MOERT_OK;
destroy_plan:
    free(taken);
    moert_plan_destroy(made);
    return status;
}

moert_status moert_plan_create(const moert_plan_shape *shape, const int32_t *index,
                               const uint64_t *counts, moert_plan **plan) {
    moert_expert_map *placement;
    moert_lane *lanes = NULL;
    MOERT_REQUIRE(shape);
    MOERT_REQUIRE(counts);
    MOERT_REQUIRE(plan);
    MOERT_TRY(check_shape(shape));
    MOERT_TRY(moert_expert_map_create(shape->experts, shape->ranks, 1, 0, &placement));
    moert_status status = MOERT_NEW_ARRAY(&lanes, shape->experts);
    if (status == MOERT_OK)
        status = moert_plan_create_placed(shape, placement, index, counts, lanes, plan);
    free(lanes);
    moert_expert_map_destroy(placement);
    return status;
}

void moert_plan_destroy(moert_plan *plan) {
    if (plan == NULL)
        return;
    moert_expert_map_destroy(plan->placement);
    MOERT_FREE(plan->counts, plan->expert_counts, plan->ends, plan->starts, plan->slot_rank,
               plan->slot_row, plan->slot_position, plan->send_rows, plan->receive_rows, plan);
}
