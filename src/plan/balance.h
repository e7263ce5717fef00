/* Chooses places for experts that balance the ranks' rows. All arrays are integers in host
 * memory. */
#pragma once

#include <stdbool.h>

#include "plan/expert_map.h"

/*
 * expert[slots of all ranks] = a placement near that of `map` in which the busiest rank has fewer
 * rows. rows[E]: rows of each expert. Each step moves an expert or clone of the busiest rank to an
 * empty slot, or exchanges it with another expert or clone. The steps end when a step would save
 * less than a hundredth of the busiest rank's rows. With `clones`, the hottest expert of the
 * busiest rank then gets clones in empty slots. Cloning ends when the busiest rank is at most a
 * thirtieth above the mean, or when a clone would save less than a thirtieth of that rank's rows.
 * Clones with few rows are removed; without `clones`, all clones are removed. Deterministic.
 * Errors: ERROR_MEMORY.
 */
moert_status moert_expert_map_balance(const moert_expert_map *map, const uint64_t *rows,
                                      bool clones, uint32_t *expert);

/* Where an expert's rows come from, if the ranks are on several nodes. */
typedef struct moert_row_sources {
    size_t nodes;
    const uint32_t *node; /* [ranks] the node of a rank */
    const uint64_t *rows; /* [nodes,E] the rows of the tokens of a node */
} moert_row_sources;

/*
 * Exchanges experts of expert[slots of all ranks] between nodes, so that fewer rows travel between
 * nodes. Each exchange must save a quarter of the rows of the two experts. No exchange may give a
 * rank over a hundredth more rows than the busiest rank had at first. Leaves clones where they are.
 * Deterministic. Errors: ERROR_MEMORY.
 */
moert_status moert_expert_map_gather(const moert_expert_map *map, const uint64_t *rows,
                                     const moert_row_sources *from, uint32_t *expert);

/* The fraction of all rows that travels between nodes in a placement, as if every expert computed
 * all its rows itself. 0 without rows. */
double moert_expert_map_crossing(const moert_expert_map *map, const uint32_t *expert,
                                 const moert_row_sources *from);

/* The rows of the busiest rank divided by the mean rows of a rank, in a placement; 1 if there are
 * no rows. The members of a chain count as if they shared its rows evenly. */
double moert_expert_map_load(const moert_expert_map *map, const uint32_t *expert,
                             const uint64_t *rows);
