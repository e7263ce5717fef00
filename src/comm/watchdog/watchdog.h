/*
 * Ends a job whose rank is dead, stopped or late, instead of letting the others wait for ever.
 *
 * A thread per process publishes a heartbeat and the phase of its rank (base/phase.h) to the ranks
 * of its host, through shared memory. A rank that has waited in one collective call for `timeout_s`
 * looks for the missing rank: a process that is gone, stopped (no heartbeat), or alive but not
 * waiting. It names that rank, with host, step and phase, on stderr. Then it ends its process with
 * status 1, and the watchdogs of the host's other ranks end theirs. A process that is gone is named
 * after half a second of waiting, before mpirun ends the other ranks. The rank before it names it
 * even if that rank does not wait in a call, but for its device, say.
 *
 * Hosts send each other a datagram every second, independently of MPI. It names the rank of the
 * host for which the others may have to wait, with its step and phase. So a rank that waits for
 * another host names the late rank there, or the host from which no datagrams come any more. It
 * does so two or three seconds later than that host itself would. Where datagrams (UDP over IPv4)
 * do not pass, the message only says which ranks wait. Where the ranks of a host share no memory,
 * the watchdog warns and is off.
 * watchdog warns and is off.
 */
#pragma once

#include "comm/comm.h"

typedef struct moert_watchdog moert_watchdog;

/* With timeout_s = 0 the watchdog never ends the job by itself. Collective. */
moert_status moert_watchdog_start(moert_comm *comm, unsigned timeout_s, moert_watchdog **watchdog);
/*
 * Call it before reporting a failure and aborting. Returns true for the first rank of its host,
 * which must print the message. The others would only repeat it, and so would other hosts that have
 * received its note. Within two seconds the watchdogs end all ranks that still run, also those that
 * ignore SIGTERM. True without a table. Not collective. NULL is legal.
 */
bool moert_watchdog_claim(moert_watchdog *watchdog);
/* Whether it watches: false without a table or a limit. */
bool moert_watchdog_is_on(const moert_watchdog *watchdog);
/* Waits for all ranks, then leaves. Collective, before moert_comm_destroy. NULL is legal. */
void moert_watchdog_stop(moert_watchdog *watchdog);
