/*
 * Latency and bandwidth between each pair of ranks. Disjoint pairs measure at the same time, so R
 * ranks need R - 1 rounds (R when R is odd).
 *
 * Messages go from host memory to host memory, in both directions at once. The staged exchange uses
 * the same function, moert_comm_alltoallv.
 */
#pragma once

#include "comm/comm.h"

/* The link between two ranks; all fields are 0 if it was not measured. */
typedef struct moert_link {
    double us;   /* time to exchange a small message */
    double gbps; /* GB/s in each direction, with large messages */
} moert_link;

/* moert_links_rounds: the number of rounds of a tournament in which each pair of `count` players
 * plays once. moert_links_partner: the partner of player i in round `round`, or `count` if player i
 * has none. */
size_t moert_links_rounds(size_t count);
size_t moert_links_partner(size_t count, size_t round, size_t i);

/*
 * links[size] = the link from this rank to each rank of `comm`. Both ranks of a link get the same
 * values. Takes about `seconds` seconds, or longer if single messages are slow. Collective,
 * blocking. Errors: ERROR_MEMORY, ERROR_COMM.
 */
moert_status moert_links_measure(moert_comm *comm, double seconds, moert_link *links);
