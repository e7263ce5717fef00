/* Chooses places for experts that balance the ranks' rows. Integers in host memory. */
#pragma once

#include "plan/expert_map.h"

/*
 * expert[slots of all ranks] = a placement in which the busiest rank has fewer rows, near to that
 * of `map`; rows[E] are those of each expert. It moves single experts to empty slots, or exchanges
 * two, each time from the busiest rank, as long as that helps. Deterministic. Errors: ERROR_MEMORY.
 */
moert_status moert_expert_map_balance(const moert_expert_map *map, const uint64_t *rows,
                                      uint32_t *expert);

/* The rows of the busiest rank in a placement. */
uint64_t moert_expert_map_busiest(const moert_expert_map *map, const uint32_t *expert,
                                  const uint64_t *rows);
