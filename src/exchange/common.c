/* Helpers of the engines: agreement of the ranks, and the experts of a chunk. */
#include <stdio.h>
#include <string.h>

#include "exchange/internal.h"

moert_status moert_exchange_everyone(moert_comm *comm, bool mine, bool *all) {
    uint64_t smallest = mine;
    MOERT_TRY(moert_comm_smallest(comm, &smallest));
    *all = smallest != 0;
    return MOERT_OK;
}

bool moert_exchange_goes_on(moert_comm *comm, moert_status status,
                            char reason[MOERT_EXCHANGE_REASON_BYTES]) {
    uint64_t first = status != MOERT_OK ? moert_comm_rank(comm) : moert_comm_size(comm);
    snprintf(reason, MOERT_EXCHANGE_REASON_BYTES, "%s",
             status != MOERT_OK ? moert_last_error() : "");
    status = moert_comm_smallest(comm, &first);
    if (status == MOERT_OK && first < moert_comm_size(comm))
        status = moert_comm_broadcast(comm, (size_t)first, reason, MOERT_EXCHANGE_REASON_BYTES);
    if (status != MOERT_OK)
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES, "%s", moert_last_error());
    return reason[0] == '\0';
}

moert_chunk moert_exchange_chunk(const moert_exchange_plan *plan, size_t chunk) {
    const moert_plan *p = plan->plan;
    const size_t first = moert_exchange_part(p->local_experts, chunk, plan->chunks);
    const size_t end = moert_exchange_part(p->local_experts, chunk + 1, plan->chunks);
    return (moert_chunk){.first = first,
                         .end = end,
                         .first_row = first > 0 ? p->ends[first - 1] : 0,
                         .end_row = end > 0 ? p->ends[end - 1] : 0};
}
