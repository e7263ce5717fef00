/*
 * Runs of rows in the messages of a plan, for dispatch and combine. At the owner a message has one
 * run of the window for each expert. At the token's rank the message is one run of packed rows.
 * Packed rows are sorted by owner and by row in the owner's window, as moert_plan.slot_position
 * numbers them.
 */
#pragma once

#include "comm/mail.h"
#include "exchange/exchange.h"

typedef struct moert_routes {
    size_t room;            /* number of runs for which the allocation at `packed`, which holds
                               `packed` and `window`, has room */
    moert_mail_run *packed; /* [ranks, chunks] runs of this rank's packed rows; the caller frees
                               this array */
    moert_mail_run *window; /* [ranks, local experts] runs of rows in this rank's window */
} moert_routes;

/* Finds the runs of packed rows and of the window for a plan. Reuses the memory of the previous
 * call. */
moert_status moert_routes_find(moert_routes *routes, const moert_exchange_plan *plan);
/* The number of rows that this rank packs. */
size_t moert_routes_packed_rows(const moert_plan *plan);
