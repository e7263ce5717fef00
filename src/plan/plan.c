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

/* The destination of this rank's slots of one expert. */
typedef struct moert_lane {
    uint32_t rank;     /* the owner */
    uint64_t row;      /* next row in the owner's window */
    uint64_t position; /* next position among this rank's rows */
    uint64_t left;     /* slots not yet placed */
} moert_lane;

/*
 * Walks over the ranks' slots in order. Computes totals, ends, the sums per rank, and the lane of
 * each expert from plan->counts[ranks,E].
 */
static moert_status lay_out(moert_plan *plan, moert_lane *lanes) {
    const moert_expert_map *placement = plan->placement;
    uint64_t position = 0;
    for (size_t owner = 0; owner < plan->ranks; owner++) {
        const uint32_t *expert = placement->expert + placement->first[owner];
        uint64_t rows = 0;
        for (size_t s = 0; s < moert_expert_map_slots_of(placement, owner); s++) {
            const size_t e = expert[s];
            for (size_t r = 0; e != MOERT_NO_EXPERT && r < plan->ranks; r++) {
                uint64_t part = plan->counts[r * plan->experts + e];
                if (r == plan->rank) {
                    lanes[e] = (moert_lane){(uint32_t)owner, rows, position, part};
                    position += part;
                    plan->send_rows[owner] += part;
                }
                if (owner == plan->rank)
                    plan->receive_rows[r] += part;
                plan->expert_counts[e] += part;
                rows += part;
            }
            if (owner == plan->rank)
                plan->ends[s] = (uint32_t)rows;
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

/* Gives each slot the next row of its expert's lane, so rows stay in token order. */
static moert_status place_slots(moert_plan *plan, const int32_t *index, moert_lane *lanes) {
    for (size_t s = 0; s < plan->tokens * plan->topk; s++) {
        plan->slot_rank[s] = plan->slot_row[s] = plan->slot_position[s] = MOERT_PLAN_DROPPED;
        if (index[s] == DROPPED)
            continue;
        if (index[s] < 0 || (size_t)index[s] >= plan->experts || lanes[index[s]].left == 0)
            return MOERT_FAIL(ERROR_MISMATCH,
                              "rank %zu: slot %zu goes to expert %d, which the counts of this rank "
                              "do not cover",
                              plan->rank, s, (int)index[s]);
        moert_lane *lane = &lanes[index[s]];
        lane->left--;
        plan->slot_rank[s] = lane->rank;
        plan->slot_row[s] = (uint32_t)lane->row++;
        plan->slot_position[s] = (uint32_t)lane->position++;
    }
    for (size_t e = 0; e < plan->experts; e++)
        if (lanes[e].left > 0)
            return MOERT_FAIL(ERROR_MISMATCH,
                              "rank %zu: the counts announce %llu slots of expert %zu that the "
                              "index does not hold",
                              plan->rank, (unsigned long long)lanes[e].left, e);
    return MOERT_OK;
}

static moert_status check_shape(const moert_plan_shape *shape) {
    const size_t slots = SIZE_MAX / sizeof(uint64_t);
    if (shape->ranks == 0 || shape->rank >= shape->ranks)
        return MOERT_FAIL(ERROR_USAGE, "a plan of rank %zu of %zu ranks", shape->rank,
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
                                      const uint64_t *counts, moert_plan **plan) {
    const size_t experts = shape->experts, ranks = shape->ranks;
    moert_plan *made;
    moert_lane *lanes;
    moert_status status;
    size_t count;
    MOERT_TRY(moert_alloc(&lanes, experts, sizeof *lanes));
    MOERT_TRY_OR(free_lanes, MOERT_NEW(&made));
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
    MOERT_TRY_OR(destroy_plan, MOERT_NEW_ARRAY(&made->send_rows, ranks));
    MOERT_TRY_OR(destroy_plan, MOERT_NEW_ARRAY(&made->receive_rows, ranks));
    memcpy(made->counts, counts, ranks * experts * sizeof *counts);
    MOERT_TRY_OR(destroy_plan, lay_out(made, lanes));
    if (index != NULL) {
        const size_t slots = made->tokens * made->topk;
        MOERT_TRY_OR(destroy_plan, MOERT_NEW_ARRAY(&made->slot_rank, slots));
        MOERT_TRY_OR(destroy_plan, MOERT_NEW_ARRAY(&made->slot_row, slots));
        MOERT_TRY_OR(destroy_plan, MOERT_NEW_ARRAY(&made->slot_position, slots));
        MOERT_TRY_OR(destroy_plan, place_slots(made, index, lanes));
    }
    *plan = made;
    free(lanes);
    return MOERT_OK;
destroy_plan:
    moert_plan_destroy(made);
free_lanes:
    free(lanes);
    return status;
}

moert_status moert_plan_create(const moert_plan_shape *shape, const int32_t *index,
                               const uint64_t *counts, moert_plan **plan) {
    moert_expert_map *placement;
    MOERT_REQUIRE(shape);
    MOERT_REQUIRE(counts);
    MOERT_REQUIRE(plan);
    MOERT_TRY(check_shape(shape));
    MOERT_TRY(moert_expert_map_create(shape->experts, shape->ranks, 0, &placement));
    const moert_status status = moert_plan_create_placed(shape, placement, index, counts, plan);
    moert_expert_map_destroy(placement);
    return status;
}

void moert_plan_destroy(moert_plan *plan) {
    if (plan == NULL)
        return;
    moert_expert_map_destroy(plan->placement);
    MOERT_FREE(plan->counts, plan->expert_counts, plan->ends, plan->slot_rank, plan->slot_row,
               plan->slot_position, plan->send_rows, plan->receive_rows, plan);
}
