/*
 * Datagrams between the hosts of a job. The watchdogs send each other the state of their ranks this
 * way, since MPI may be stuck.
 *
 * Uses UDP over IPv4, not MPI. A lost datagram is not sent again, since the next one follows soon.
 * A beacon sends to all addresses of a host until a datagram has arrived from that host, then only
 * to the sender's address.
 *
 * Every datagram carries the sender's index, a sequence number and a SipHash tag of its content
 * under the job's secret key. A receiver drops and counts datagrams whose tag is wrong (other jobs,
 * port scans, forgeries) or whose sequence number is not above that of the host's last datagram
 * (replays). The receiver warns at the first, the tenth, the hundredth... dropped datagram. Dropped
 * datagrams have no other effect. The content is not encrypted.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "comm/watchdog/siphash.h"

enum { MOERT_BEACON_ADDRESSES = 8, MOERT_BEACON_BYTES = 256 };

/* The addresses of a host's beacon; all zero if the host has no beacon. */
typedef struct moert_beacon_address {
    uint32_t addresses[MOERT_BEACON_ADDRESSES]; /* addresses and port are in network byte order;
                                                   an address of 0 ends the list */
    uint16_t port;
} moert_beacon_address;

typedef struct moert_beacon moert_beacon;

/* Opens the beacon of host `me` of `hosts`; *place = its addresses. ERROR_COMM (no socket),
 * ERROR_MEMORY. */
moert_status moert_beacon_open(size_t me, size_t hosts, moert_beacon **beacon,
                               moert_beacon_address *place);
/* Draws the secret key of a job. ERROR_COMM (no random numbers). */
moert_status moert_beacon_draw_key(moert_siphash_key *key);
/* Sets the addresses of all hosts, places[hosts], and the key that all hosts share. */
void moert_beacon_aim(moert_beacon *beacon, const moert_siphash_key *key,
                      const moert_beacon_address *places);

/* Sends at most MOERT_BEACON_BYTES to all other hosts. Does not block. */
void moert_beacon_send(moert_beacon *beacon, const void *data, size_t bytes);
/* Takes the next datagram of `bytes` bytes from another host of the job; returns false if none has
 * arrived. Does not block. */
bool moert_beacon_receive(moert_beacon *beacon, size_t *host, void *data, size_t bytes);

/* The number of datagrams dropped so far, for tests. */
uint64_t moert_beacon_dropped(const moert_beacon *beacon);

/* Finds the next host whose beacon is closed: that host's system refuses datagrams. Returns false
 * if there is no such host. Ignores hosts that still send datagrams: there a firewall refuses. */
bool moert_beacon_refused(moert_beacon *beacon, size_t *host);

/* NULL is legal. */
void moert_beacon_close(moert_beacon *beacon);
