/*
 * Datagrams between the hosts of a job: a way beside MPI, which may be stuck, by which the
 * watchdogs tell each other what their ranks do.
 *
 * Knows nothing of MPI. UDP over IPv4. What is lost is lost: the next one follows soon. A host is
 * sent to at all of its addresses until it has been heard from, then at the one it was heard from.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { MOERT_BEACON_ADDRESSES = 8, MOERT_BEACON_BYTES = 256 };

/* Where a host is reached. All zero: nowhere. */
typedef struct moert_beacon_place {
    uint64_t key;                               /* that of the first host is the job's */
    uint32_t addresses[MOERT_BEACON_ADDRESSES]; /* in network order, like the port; 0: no more */
    uint16_t port;
} moert_beacon_place;

typedef struct moert_beacon moert_beacon;

/* Opens the beacon of host `me` of `hosts`, and says where the others reach it. ERROR_COMM (no
 * socket), ERROR_MEMORY. */
moert_status moert_beacon_open(size_t me, size_t hosts, moert_beacon **beacon,
                               moert_beacon_place *place);
/* Tells where the hosts are: places[hosts]. */
void moert_beacon_aim(moert_beacon *beacon, const moert_beacon_place *places);

/* Sends at most MOERT_BEACON_BYTES to all others. Does not block. */
void moert_beacon_send(moert_beacon *beacon, const void *data, size_t bytes);
/* The next datagram of this size that another host of the job has sent; false: there is none. Does
 * not block. */
bool moert_beacon_receive(moert_beacon *beacon, size_t *host, void *data, size_t bytes);

/* The next host whose beacon has been closed, as its system says; false: none. Hosts that refuse
 * what is sent to them although they live, by a firewall, are left out. */
bool moert_beacon_refused(moert_beacon *beacon, size_t *host);

/* NULL is legal. */
void moert_beacon_close(moert_beacon *beacon);
