/* Finds the runs of rows between pairs of ranks (see routes.h). */
#include "exchange/routes.h"

#include <stdlib.h>

#include "base/memory.h"
#include "exchange/internal.h"

/* Finds the runs of each rank's rows of each local expert in the window. */
static void find_window_runs(const moert_plan *plan, moert_mail_run *runs) {
    for (size_t i = 0; i < plan->local_experts; i++) {
        size_t row = i > 0 ? plan->ends[i - 1] : 0;
        for (size_t r = 0; r < plan->ranks; r++) {
            const size_t rows = plan->counts[r * plan->experts + plan->first_expert + i];
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
        size_t first, count;
        moert_plan_experts(p->experts, p->ranks, r, &first, &count);
        for (size_t c = 0; c < plan->chunks; c++) {
            const size_t begin = row;
            const size_t end = first + moert_exchange_part(count, c + 1, plan->chunks);
            for (size_t e = first + moert_exchange_part(count, c, plan->chunks); e < end; e++)
                row += p->counts[p->rank * p->experts + e];
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
