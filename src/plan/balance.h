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

/* rows / mean of the busiest rank in a placement; 1 without rows. The members of a chain count as
 * if they shared its rows evenly. */
double moert_expert_map_load(const moert_expert_map *map, const uint32_t *expert,
                             const uint64_t *rows);
