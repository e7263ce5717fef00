/* Places experts in the slots of ranks: in contiguous blocks (moert/plan.h), or in any way. */
#include "plan/expert_map.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

void moert_plan_experts(size_t experts, size_t ranks, size_t rank, size_t *first, size_t *count) {
    if (rank >= ranks) { /* no such rank, no experts */
        *first = experts;
        *count = 0;
        return;
    }
    size_t least = experts / ranks, larger = experts % ranks;
    *first = rank * least + moert_min(rank, larger);
    *count = least + (rank < larger ? 1 : 0);
}

size_t moert_plan_owner(size_t experts, size_t ranks, size_t expert) {
    if (expert >= experts || ranks == 0)
        return ranks;
    size_t least = experts / ranks, larger = experts % ranks;
    if (expert < larger * (least + 1))
        return expert / (least + 1);
    return larger + (expert - larger * (least + 1)) / least;
}

size_t moert_expert_map_slots(const moert_expert_map *placement) {
    return placement->first[placement->ranks];
}

size_t moert_expert_map_slots_of(const moert_expert_map *placement, size_t rank) {
    return placement->first[rank + 1] - placement->first[rank];
}

size_t moert_expert_map_most(const moert_expert_map *placement) {
    size_t most = 0;
    for (size_t r = 0; r < placement->ranks; r++) {
        size_t count = 0;
        for (uint32_t s = placement->first[r]; s < placement->first[r + 1]; s++)
            count += placement->expert[s] != MOERT_NO_EXPERT;
        most = moert_max(most, count);
    }
    return most;
}

/* Allocates a placement without experts whose slots are still to be divided among the ranks. */
static moert_status allocate(size_t experts, size_t ranks, size_t slots,
                             moert_expert_map **placement) {
    moert_expert_map *made;
    MOERT_TRY(MOERT_NEW(&made));
    const moert_status status = MOERT_NEW_ARRAY(&made->first, ranks + 1 + slots + 2 * experts);
    if (status != MOERT_OK) {
        free(made);
        return status;
    }
    made->experts = experts;
    made->ranks = ranks;
    made->expert = made->first + ranks + 1;
    made->rank = made->expert + slots;
    made->slot = made->rank + experts;
    *placement = made;
    return MOERT_OK;
}

void moert_expert_map_destroy(moert_expert_map *placement) {
    if (placement != NULL)
        MOERT_FREE(placement->first, placement);
}

moert_status moert_expert_map_create(size_t experts, size_t ranks, size_t slots,
                                     moert_expert_map **placement) {
    moert_expert_map *made;
    size_t first, count;
    moert_plan_experts(experts, ranks, 0, &first, &count);
    if (slots > 0 && slots < count)
        return MOERT_FAIL(ERROR_USAGE, "%zu slots on each of %zu ranks do not hold %zu experts",
                          slots, ranks, experts);
    MOERT_TRY(allocate(experts, ranks, slots > 0 ? ranks * slots : experts, &made));
    for (size_t r = 0; r < ranks; r++) {
        moert_plan_experts(experts, ranks, r, &first, &count);
        const size_t own = slots > 0 ? slots : count;
        uint32_t *expert = made->expert + made->first[r];
        made->first[r + 1] = made->first[r] + (uint32_t)own;
        for (size_t s = 0; s < own; s++)
            expert[s] = s < count ? (uint32_t)(first + s) : MOERT_NO_EXPERT;
    }
    *placement = made;
    return moert_expert_map_assign(made, made->expert);
}

moert_status moert_expert_map_copy(const moert_expert_map *placement, moert_expert_map **copy) {
    const size_t slots = moert_expert_map_slots(placement);
    const size_t words = placement->ranks + 1 + slots + 2 * placement->experts;
    MOERT_TRY(allocate(placement->experts, placement->ranks, slots, copy));
    memcpy((*copy)->first, placement->first, words * sizeof *placement->first);
    return MOERT_OK;
}

moert_status moert_expert_map_assign(moert_expert_map *placement, const uint32_t *expert) {
    const size_t slots = moert_expert_map_slots(placement);
    size_t placed = 0;
    memset(placement->rank, 0xff, placement->experts * sizeof *placement->rank);
    for (size_t r = 0; r < placement->ranks; r++)
        for (uint32_t s = placement->first[r]; s < placement->first[r + 1]; s++) {
            const uint32_t e = expert[s];
            if (e == MOERT_NO_EXPERT)
                continue;
            if (e >= placement->experts || placement->rank[e] != UINT32_MAX)
                return MOERT_FAIL(ERROR_USAGE,
                                  "a placement puts expert %u into slot %u of rank %zu; there are "
                                  "%zu experts, and each has one slot",
                                  e, s - placement->first[r], r, placement->experts);
            placement->rank[e] = (uint32_t)r;
            placement->slot[e] = s - placement->first[r];
            placed++;
        }
    if (placed < placement->experts)
        return MOERT_FAIL(ERROR_USAGE, "a placement has slots for %zu of %zu experts", placed,
                          placement->experts);
    memmove(placement->expert, expert, slots * sizeof *expert);
    return MOERT_OK;
}
