/* Balances the ranks' rows, by a local search from the present placement. */
#include "plan/balance.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static uint64_t rows_in(const uint32_t *expert, const uint64_t *rows, size_t slot) {
    return expert[slot] != MOERT_NO_EXPERT ? rows[expert[slot]] : 0;
}

static uint64_t rows_of_rank(const moert_expert_map *map, const uint32_t *expert,
                             const uint64_t *rows, size_t rank) {
    uint64_t sum = 0;
    for (size_t s = map->first[rank]; s < map->first[rank + 1]; s++)
        sum += rows_in(expert, rows, s);
    return sum;
}

uint64_t moert_expert_map_busiest(const moert_expert_map *map, const uint32_t *expert,
                                  const uint64_t *rows) {
    uint64_t most = 0;
    for (size_t r = 0; r < map->ranks; r++) {
        const uint64_t sum = rows_of_rank(map, expert, rows, r);
        most = sum > most ? sum : most;
    }
    return most;
}

/* Two slots whose experts change places. */
typedef struct exchange {
    size_t here, there;
    uint64_t larger; /* rows of the busier of their two ranks afterwards */
} exchange;

/* Finds the exchange between a slot of the busiest rank and one of another rank that leaves the
 * fewest rows to the busier of the two. Without an improvement larger == load[busiest]. */
static exchange find_exchange(const moert_expert_map *map, const uint32_t *expert,
                              const uint64_t *rows, const uint64_t *load, size_t busiest) {
    exchange best = {.larger = load[busiest]};
    for (size_t a = map->first[busiest]; a < map->first[busiest + 1]; a++)
        for (size_t r = 0; r < map->ranks; r++)
            for (size_t b = map->first[r]; b < map->first[r + 1]; b++) {
                const uint64_t gives = rows_in(expert, rows, a), takes = rows_in(expert, rows, b);
                if (r == busiest || gives <= takes)
                    continue;
                const uint64_t here = load[busiest] - gives + takes,
                               there = load[r] - takes + gives;
                const uint64_t larger = here > there ? here : there;
                if (larger < best.larger)
                    best = (exchange){a, b, larger};
            }
    return best;
}

moert_status moert_expert_map_balance(const moert_expert_map *map, const uint64_t *rows,
                                      uint32_t *expert) {
    uint64_t *load;
    MOERT_TRY(MOERT_NEW_ARRAY(&load, map->ranks));
    memcpy(expert, map->expert, moert_expert_map_slots(map) * sizeof *expert);
    for (size_t r = 0; r < map->ranks; r++)
        load[r] = rows_of_rank(map, expert, rows, r);
    for (;;) {
        size_t busiest = 0;
        for (size_t r = 1; r < map->ranks; r++)
            busiest = load[r] > load[busiest] ? r : busiest;
        const exchange best = find_exchange(map, expert, rows, load, busiest);
        if (best.larger >= load[busiest])
            break;
        const uint32_t moved = expert[best.here];
        expert[best.here] = expert[best.there];
        expert[best.there] = moved;
        for (size_t r = 0; r < map->ranks; r++)
            load[r] = rows_of_rank(map, expert, rows, r);
    }
    free(load);
    return MOERT_OK;
}
