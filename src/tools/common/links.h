/*
 * How fast ranks reach each other, pair by pair: disjoint pairs at the same time, so that R ranks
 * need R - 1 rounds (R when R is odd).
 *
 * Messages are those of the staged exchange (moert_comm_alltoallv), from host memory to host
 * memory, both ways at once.
 */
#pragma once

#include "comm/comm.h"

/* Of one way between two ranks; zeros where nothing was measured. */
typedef struct moert_link {
    double us;   /* that the exchange of a small message takes */
    double gbps; /* GB/s each way, of large ones */
} moert_link;

/* Partner of player `i` of `count` in a round of a tournament in which every pair meets once;
 * `count` itself means that it rests. Rounds: moert_links_rounds(count). */
size_t moert_links_rounds(size_t count);
size_t moert_links_partner(size_t count, size_t round, size_t i);

/*
 * links[size] from this rank to each other one of `comm`, the same as seen from both sides. Takes
 * about `seconds`, longer where single messages do. Collective, blocking. Errors: ERROR_MEMORY,
 * ERROR_COMM.
 */
moert_status moert_links_measure(moert_comm *comm, double seconds, moert_link *links);
