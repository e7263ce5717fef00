/* Finds the runs of rows between pairs of ranks (see routes.h). */
#include "exchange/routes.h"

#include <stdlib.h>

#include "base/memory.h"
#include "exchange/internal.h"
#include "plan/expert_map.h"

/* Finds the runs of window rows: one for each local expert slot and each rank whose tokens it
 * gets. */
static void find_window_runs(const moert_plan *plan, moert_mail_run *runs) {
    for (size_t i = 0; i < plan->local_experts; i++) {
        size_t row = i > 0 ? plan->ends[i - 1] : 0;
        for (size_t r = 0; r < plan->ranks; r++) {
            const size_t rows =
                moert_plan_slot_rows(plan, r, plan->placement->first[plan->rank] + i);
            runs[r * plan->local_experts + i] = (moert_mail_run){row, rows};
            row += rows;
        }
    }
}

/* Finds the runs of this rank's packed rows, one for each owner and chunk. */
static void find_packed_runs(const moert_exchange_plan *plan, moert_mail_run *runs) {
    const moert_plan *p = plan->plan;
    size_t row = 0;
    for (size_t r = 0; r < p->ranks; r++) {
        const size_t first = p->placement->first[r],
                     count = moert_expert_map_slots_of(p->placement, r);
        for (size_t c = 0; c < plan->chunks; c++) {
            const size_t begin = row;
            const size_t end = first + moert_exchange_part(count, c + 1, plan->chunks);
            for (size_t s = first + moert_exchange_part(count, c, plan->chunks); s < end; s++)
                row += moert_plan_slot_rows(p, p->rank, s);
            runs[r * plan->chunks + c] = (moert_mail_run){begin, row - begin};
        }
    }
}

moert_status moert_routes_find(moert_routes *routes, const moert_exchange_plan *plan) {
    const moert_plan *p = plan->plan;
    const size_t packed = p->ranks * plan->chunks,
                 needed = packed + p->ranks * p->local_experts + 1;
    if (routes->room < needed) {
        free(routes->packed);
        *routes = (moert_routes){.room = 0};
        MOERT_TRY(MOERT_NEW_ARRAY(&routes->packed, needed));
        routes->room = needed;
    }
    routes->window = routes->packed + packed;
    find_window_runs(p, routes->window);
    find_packed_runs(plan, routes->packed);
    return MOERT_OK;
}

size_t moert_routes_packed_rows(const moert_plan *plan) {
    size_t sum = 0;
    for (size_t r = 0; r < plan->ranks; r++)
        sum += plan->send_rows[r];
    return sum;
}
