/* Places experts in the slots of ranks: in contiguous blocks (moert/plan.h), or in any way. */
#include "plan/expert_map.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

void moert_plan_experts(size_t experts, size_t ranks, size_t rank, size_t *first, size_t *count) {
    if (rank >= ranks) { /* a rank that does not exist has no experts */
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
            count += placement->expert[s] != MOERT_NO_EXPERT; /* counts clones as well */
        most = moert_max(most, count);
    }
    return most;
}

/* The words of a placement's arrays. */
static size_t words_of(size_t experts, size_t ranks, size_t slots) {
    return ranks + 1 + 2 * slots + 3 * experts;
}

/* Allocates a placement without experts whose slots are still to be divided among the ranks. */
static moert_status allocate(size_t experts, size_t ranks, size_t slots,
                             moert_expert_map **placement) {
    moert_expert_map *made;
    MOERT_TRY(MOERT_NEW(&made));
    const moert_status status = MOERT_NEW_ARRAY(&made->first, words_of(experts, ranks, slots));
    if (status != MOERT_OK) {
        free(made);
        return status;
    }
    made->experts = experts;
    made->ranks = ranks;
    made->expert = made->first + ranks + 1;
    made->position = made->expert + slots;
    made->rank = made->position + slots;
    made->slot = made->rank + experts;
    made->chain = made->slot + experts;
    *placement = made;
    return MOERT_OK;
}

void moert_expert_map_destroy(moert_expert_map *placement) {
    if (placement != NULL)
        MOERT_FREE(placement->first, placement);
}

/* Fills the slots of a rank with its contiguous block. Every groups-th slot of the block holds the
 * expert itself, the other slots hold clones. Returns the number of the rank's slots. */
static size_t fill_slots(const moert_expert_map *placement, size_t rank, size_t slots) {
    const size_t groups = placement->groups, size = placement->ranks / groups;
    uint32_t *expert = placement->expert + placement->first[rank];
    size_t first, count;
    moert_plan_experts(placement->experts, size, rank % size, &first, &count);
    slots = slots > 0 ? slots : count;
    for (size_t s = 0; s < slots; s++) {
        const bool own = s % groups == rank / size;
        expert[s] =
            s < count ? (uint32_t)(first + s) | (own ? 0 : MOERT_EXPERT_CLONE) : MOERT_NO_EXPERT;
    }
    return slots;
}

moert_status moert_expert_map_create(size_t experts, size_t ranks, size_t groups, size_t slots,
                                     moert_expert_map **placement) {
    moert_expert_map *made;
    size_t first, count;
    moert_plan_experts(experts, ranks / groups, 0, &first, &count);
    if (slots > 0 && slots < count)
        return MOERT_FAIL(ERROR_USAGE, "%zu slots on each of %zu ranks do not hold %zu experts",
                          slots, ranks / groups, experts);
    MOERT_TRY(allocate(experts, ranks, slots > 0 ? ranks * slots : groups * experts, &made));
    made->groups = groups;
    made->cut = MOERT_CUT_ROWS;
    for (size_t r = 0; r < ranks; r++)
        made->first[r + 1] = made->first[r] + (uint32_t)fill_slots(made, r, slots);
    *placement = made;
    return moert_expert_map_assign(made, made->expert);
}

moert_status moert_expert_map_copy(const moert_expert_map *placement, moert_expert_map **copy) {
    const size_t slots = moert_expert_map_slots(placement);
    const size_t words = words_of(placement->experts, placement->ranks, slots);
    MOERT_TRY(allocate(placement->experts, placement->ranks, slots, copy));
    (*copy)->groups = placement->groups;
    (*copy)->cut = placement->cut;
    (*copy)->longest = placement->longest;
    memcpy((*copy)->first, placement->first, words * sizeof *placement->first);
    return MOERT_OK;
}

size_t moert_expert_map_rank(const moert_expert_map *placement, size_t slot) {
    size_t rank = 0;
    while (placement->first[rank + 1] <= slot)
        rank++;
    return rank;
}

size_t moert_expert_map_bound(size_t topk, size_t held, size_t tokens, size_t most, size_t cut) {
    const size_t each = moert_min(topk, held);
    return moert_min(tokens * each, most * each + held * (cut - 1));
}

size_t moert_expert_map_find(const moert_expert_map *placement, size_t expert, size_t position) {
    size_t slot = 0;
    while (moert_expert_map_at(placement, slot) != expert || placement->position[slot] != position)
        slot++;
    return slot;
}

/* The number of rows for an expert from the tokens of ranks 0 to `ranks` - 1. */
static uint64_t rows_before(const moert_expert_map *placement, size_t expert, size_t ranks,
                            const uint64_t *counts) {
    uint64_t rows = 0;
    for (size_t r = 0; r < ranks; r++)
        rows += counts[r * placement->experts + expert];
    return rows;
}

uint64_t moert_expert_map_cut(const moert_expert_map *placement, size_t expert, size_t position,
                              const uint64_t *counts) {
    const size_t ranks = placement->ranks, groups = placement->groups, cut = placement->cut;
    const uint64_t rows = rows_before(placement, expert, ranks, counts);
    const uint64_t pieces =
        groups > 1
            ? moert_ceil_div(rows_before(placement, expert, position * ranks / groups, counts), cut)
            : moert_ceil_div(rows, cut) * position / placement->chain[expert];
    return moert_min(pieces * cut, rows);
}

/* The facts that check() has found about an expert so far. */
typedef struct seen {
    size_t last;    /* 1 + the last rank that holds the expert or a clone */
    size_t members; /* number of slots that hold the expert or a clone */
    bool placed;    /* a slot holds the expert itself */
} seen;

/* Checks the word in a slot of a rank. */
static moert_status check_slot(const moert_expert_map *placement, uint32_t word, size_t rank,
                               size_t slot, seen *before) {
    const size_t experts = placement->experts, groups = placement->groups;
    const uint32_t e = moert_expert_of(word);
    const bool own = e == word;
    if (e >= experts || (own && before[e].placed))
        return MOERT_FAIL(ERROR_USAGE,
                          "a placement puts expert %u into slot %zu of rank %zu; there are %zu "
                          "experts, and each has one slot",
                          e, slot, rank, experts);
    if (before[e].last == rank + 1)
        return MOERT_FAIL(ERROR_USAGE,
                          "a placement puts expert %u into slot %zu of rank %zu, which has it, or "
                          "a clone of it, in another slot",
                          e, slot, rank);
    if (groups > 1 && before[e].members != rank * groups / placement->ranks)
        return MOERT_FAIL(ERROR_USAGE,
                          "a placement puts expert %u into slot %zu of rank %zu, but each of %zu "
                          "groups must hold each expert exactly once",
                          e, slot, rank, groups);
    before[e].last = rank + 1;
    before[e].members++;
    before[e].placed |= own;
    return MOERT_OK;
}

static moert_status check(const moert_expert_map *placement, const uint32_t *expert) {
    size_t placed = 0;
    seen *before;
    moert_status status = MOERT_OK;
    MOERT_TRY(MOERT_NEW_ARRAY(&before, placement->experts));
    for (size_t r = 0; r < placement->ranks; r++)
        for (uint32_t s = placement->first[r]; s < placement->first[r + 1]; s++)
            if (status == MOERT_OK && expert[s] != MOERT_NO_EXPERT)
                status = check_slot(placement, expert[s], r, s - placement->first[r], before);
    for (size_t e = 0; e < placement->experts; e++)
        placed += before[e].placed && before[e].members >= placement->groups;
    free(before);
    if (status == MOERT_OK && placed < placement->experts)
        return MOERT_FAIL(ERROR_USAGE, "a placement has slots for only %zu of %zu experts%s",
                          placed, placement->experts,
                          placement->groups > 1 ? " in each group" : "");
    return status;
}

/* Numbers the members of the chains: an expert comes after its clones; with several groups, the
 * members are in the order of their groups. */
static void number_members(moert_expert_map *placement) {
    const int rounds = placement->groups > 1 ? 1 : 2;
    placement->longest = 1;
    memset(placement->chain, 0, placement->experts * sizeof *placement->chain);
    for (int round = 0; round < rounds; round++)
        for (size_t s = 0; s < moert_expert_map_slots(placement); s++) {
            const uint32_t word = placement->expert[s], e = moert_expert_map_at(placement, s);
            if (e == MOERT_NO_EXPERT || (rounds == 2 && (word == e) != (round == 1)))
                continue;
            placement->position[s] = placement->chain[e]++;
            placement->longest = moert_max(placement->longest, placement->chain[e]);
        }
}

moert_status moert_expert_map_assign(moert_expert_map *placement, const uint32_t *expert) {
    MOERT_TRY(check(placement, expert));
    memmove(placement->expert, expert, moert_expert_map_slots(placement) * sizeof *expert);
    for (size_t r = 0; r < placement->ranks; r++)
        for (uint32_t s = placement->first[r]; s < placement->first[r + 1]; s++) {
            const uint32_t word = placement->expert[s];
            if (word == MOERT_NO_EXPERT || (word & MOERT_EXPERT_CLONE) != 0)
                continue;
            placement->rank[word] = (uint32_t)r;
            placement->slot[word] = s - placement->first[r];
        }
    number_members(placement);
    return MOERT_OK;
}
