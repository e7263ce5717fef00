/*
 * Where the rows of a plan lie on both ways as messages between pairs of ranks: on the owner's side
 * runs of its window, one for each expert; on the other side one run of the rows that a rank packs,
 * or gets back, sorted by (owner, row there): the places moert_plan.slot_position.
 */
#pragma once

#include "comm/mail.h"
#include "exchange/exchange.h"

typedef struct moert_routes {
    size_t room;            /* of both, at `packed`, to be freed */
    moert_mail_run *packed; /* [ranks, chunks], among this rank's packed rows */
    moert_mail_run *window; /* [ranks, local experts], in this rank's window */
} moert_routes;

/* Both, for a plan's dispatch and the combine that follows it; keeps the memory of the last. */
moert_status moert_routes_find(moert_routes *routes, const moert_exchange_plan *plan);
/* Rows that this rank packs. */
size_t moert_routes_packed_rows(const moert_plan *plan);
