/* Chooses places for experts that balance the ranks' rows. Integers in host memory. */
#pragma once

#include <stdbool.h>

#include "plan/expert_map.h"

/*
 * expert[slots of all ranks] = a placement in which the busiest rank has fewer rows, near to that
 * of `map`; rows[E] are those of each expert. It moves single experts or clones to empty slots, or
 * exchanges two, each time from the busiest rank, as long as this saves a hundredth of that rank's
 * rows. With `clones`, the hottest expert of the busiest rank then gets clones in empty slots, as
 * long as the busiest rank is a thirtieth above the mean and gains as much; clones with few rows
 * end. Without `clones`, all end. Deterministic. Errors: ERROR_MEMORY.
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
 * them, as long as an exchange saves a quarter of the rows of the experts that move, and gives no
 * rank a hundredth more rows than the busiest had. Leaves clones where they are. Deterministic.
 * Errors: ERROR_MEMORY.
 */
moert_status moert_expert_map_gather(const moert_expert_map *map, const uint64_t *rows,
                                     const moert_row_sources *from, uint32_t *expert);

/* The part of the rows that travels between nodes in a placement, as if clones had none. 0 without
 * rows. */
double moert_expert_map_crossing(const moert_expert_map *map, const uint32_t *expert,
                                 const moert_row_sources *from);

/* rows / mean of the busiest rank in a placement; 1 without rows. The members of a chain count as
 * if they shared its rows evenly. */
double moert_expert_map_load(const moert_expert_map *map, const uint32_t *expert,
                             const uint64_t *rows);
