/*
 * Where the experts of a layer live. Each rank has slots, and a slot holds one expert or none.
 * moert/plan.h places experts in contiguous blocks, but any placement gives the same results: an
 * expert's rows and sums do not depend on its rank or slot. Integers in host memory.
 */
#pragma once

#include "moert/plan.h"

#define MOERT_NO_EXPERT UINT32_MAX

typedef struct moert_expert_map {
    size_t experts, ranks;
    uint32_t *first;  /* [ranks + 1] rank r has the slots first[r] to first[r + 1] - 1 of all */
    uint32_t *expert; /* [slots of all ranks] the expert in a slot, or MOERT_NO_EXPERT */
    uint32_t *rank;   /* [E] the rank that holds an expert, */
    uint32_t *slot;   /* [E] and its slot, counted from that rank's first */
} moert_expert_map;

/* Contiguous blocks of experts. Each rank has `slots` slots, of which the last may be empty; 0: as
 * many as it has experts. Errors: ERROR_USAGE (too few slots), ERROR_MEMORY. */
moert_status moert_expert_map_create(size_t experts, size_t ranks, size_t slots,
                                     moert_expert_map **placement);
void moert_expert_map_destroy(moert_expert_map *placement); /* NULL is legal. */
moert_status moert_expert_map_copy(const moert_expert_map *placement, moert_expert_map **copy);

/* Places expert[slots of all ranks], which may be `placement`'s own array. ERROR_USAGE unless each
 * expert has one slot. */
moert_status moert_expert_map_assign(moert_expert_map *placement, const uint32_t *expert);

/* The slots of all ranks, and of one. */
size_t moert_expert_map_slots(const moert_expert_map *placement);
size_t moert_expert_map_slots_of(const moert_expert_map *placement, size_t rank);
/* The most experts of a rank. */
size_t moert_expert_map_most(const moert_expert_map *placement);

/* moert_plan_create for experts in these places; shape->experts and ranks are those of the
 * placement, which the plan copies. */
moert_status moert_plan_create_placed(const moert_plan_shape *shape,
                                      const moert_expert_map *placement, const int32_t *index,
                                      const uint64_t *counts, moert_plan **plan);
