/*
 * Latency and bandwidth between each pair of ranks. Disjoint pairs measure at the same time, so R
 * ranks need R - 1 rounds (R when R is odd).
 *
 * The messages go from host memory to host memory, both ways at once, by the call that the staged
 * exchange makes (moert_comm_alltoallv).
 */
#pragma once

#include "comm/comm.h"

/* The link between two ranks; zeros if it was not measured. */
typedef struct moert_link {
    double us;   /* time to exchange a small message */
    double gbps; /* GB/s each way with large messages */
} moert_link;

/* Rounds of a tournament of `count` players in which every pair plays once, and the partner of
 * player `i` in round `round`; `count` means that player i rests. */
size_t moert_links_rounds(size_t count);
size_t moert_links_partner(size_t count, size_t round, size_t i);

/*
 * links[size]: the link from this rank to each rank of `comm`; both ends get the same values. Takes
 * about `seconds`, more if single messages are slow. Collective, blocking. Errors: ERROR_MEMORY,
 * ERROR_COMM.
 */
moert_status moert_links_measure(moert_comm *comm, double seconds, moert_link *links);
