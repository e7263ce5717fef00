/*
 * Where the experts of a layer live. Each rank has slots, and a slot holds one expert or none.
 * moert/plan.h places experts in contiguous blocks, but any placement gives the same results: an
 * expert's rows and sums do not depend on its rank or slot. All arrays are integers in host memory.
 *
 * Other slots may hold clones of an expert. The clones and the expert itself form the expert's
 * *chain*: first the clones in the order of their slots, then the expert. Each member of the chain
 * computes a range of the expert's rows, in this order (moert_expert_map_cut).
 *
 * If the ranks form several groups (exact replicas), each group has one member of each expert's
 * chain. Member m is in group m, whichever member is the expert itself.
 */
#pragma once

#include "moert/plan.h"

enum { MOERT_CUT_ROWS = 64 }; /* the usual moert_expert_map.cut */

/* The values of MOERT_LAYER_NO_EXPERT and MOERT_LAYER_CLONE of moert/layer.h. */
#define MOERT_NO_EXPERT    UINT32_MAX
#define MOERT_EXPERT_CLONE 0x80000000u

typedef struct moert_expert_map {
    size_t experts, ranks;
    size_t groups;      /* number of groups of consecutive ranks; each group holds all experts */
    size_t cut;         /* a member's range of rows begins at a multiple of this number */
    size_t longest;     /* number of members of the longest chain; 1: there are no clones */
    uint32_t *first;    /* [ranks + 1] rank r has the slots first[r] to first[r + 1] - 1 of all
                           slots */
    uint32_t *expert;   /* [slots of all ranks] the expert in a slot, a clone, or MOERT_NO_EXPERT */
    uint32_t *position; /* [slots of all ranks] position of the slot in the chain of its expert */
    uint32_t *rank;     /* [E] the rank that holds the expert itself */
    uint32_t *slot;     /* [E] the slot of the expert itself, counted from its rank's first slot */
    uint32_t *chain;    /* [E] number of members of the expert's chain */
} moert_expert_map;

/* Returns the expert that the word of a slot names; if the word names a clone, the expert that was
 * cloned; MOERT_NO_EXPERT if the slot is empty. */
static inline uint32_t moert_expert_of(uint32_t word) {
    return word != MOERT_NO_EXPERT ? word & ~MOERT_EXPERT_CLONE : word;
}
static inline uint32_t moert_expert_map_at(const moert_expert_map *placement, size_t slot) {
    return moert_expert_of(placement->expert[slot]);
}

/*
 * The first of an expert's rows that member `position` of its chain computes, or the end of the
 * rows if `position` is the number of members; counts[ranks,E] are the rows of each rank's tokens.
 * Members share the rows evenly; with exact replicas, each member computes the rows of its group's
 * tokens. Ranges begin at multiples of placement->cut, so that no pair or block of a sum over
 * rows is divided.
 */
uint64_t moert_expert_map_cut(const moert_expert_map *placement, size_t expert, size_t position,
                              const uint64_t *counts);

/* The most rows that a rank with `held` experts and clones can receive if each token chooses `topk`
 * experts. `tokens`: tokens of all groups; `most`: tokens of the largest group; `cut`: that of the
 * map. */
size_t moert_expert_map_bound(size_t topk, size_t held, size_t tokens, size_t most, size_t cut);

/* The slot, counted over all ranks, of a member of an expert's chain. */
size_t moert_expert_map_find(const moert_expert_map *placement, size_t expert, size_t position);
/* The rank of a slot, counted over all ranks. */
size_t moert_expert_map_rank(const moert_expert_map *placement, size_t slot);

/* Creates the contiguous placement. Each of `groups` groups of ranks holds all experts in
 * contiguous blocks; the experts themselves are spread over the groups. `slots`: slots of each
 * rank, the last of which may be empty; 0: as many as the rank has experts. Errors: ERROR_USAGE
 * (too few slots), ERROR_MEMORY. */
moert_status moert_expert_map_create(size_t experts, size_t ranks, size_t groups, size_t slots,
                                     moert_expert_map **placement);
void moert_expert_map_destroy(moert_expert_map *placement); /* NULL is legal. */
moert_status moert_expert_map_copy(const moert_expert_map *placement, moert_expert_map **copy);

/* Places expert[slots of all ranks], which may be `placement`'s own array. Each expert itself must
 * have exactly one slot. A rank may hold an expert, or a clone of it, only once; with several
 * groups, each group must hold each expert, or a clone of it, exactly once. Errors: ERROR_USAGE
 * otherwise, ERROR_MEMORY. After a failure the placement is as before. */
moert_status moert_expert_map_assign(moert_expert_map *placement, const uint32_t *expert);

/* The number of slots of all ranks, and of one rank. */
size_t moert_expert_map_slots(const moert_expert_map *placement);
size_t moert_expert_map_slots_of(const moert_expert_map *placement, size_t rank);
/* The most experts and clones of a rank. */
size_t moert_expert_map_most(const moert_expert_map *placement);

/* A lane: the rows that the plan's rank sends to one member of a chain, and where they go. */
typedef struct moert_lane {
    uint32_t rank;     /* the member's rank */
    uint64_t row;      /* the lane's first row in the window of that rank */
    uint64_t position; /* the lane's first row among those of the plan's rank */
    uint64_t rows;
} moert_lane;

/* Like moert_plan_create, for any placement, which the plan copies. shape->experts and shape->ranks
 * must be those of the placement. lanes[longest,E] = the lanes of each expert's members. */
moert_status moert_plan_create_placed(const moert_plan_shape *shape,
                                      const moert_expert_map *placement, const int32_t *index,
                                      const uint64_t *counts, moert_lane *lanes, moert_plan **plan);

/* The rows of a rank that a slot, counted over all ranks, receives. */
uint64_t moert_plan_slot_rows(const moert_plan *plan, size_t rank, size_t slot);
