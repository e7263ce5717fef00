/*
 * Ends a job whose rank is dead, stopped or late, instead of letting the others wait for ever.
 *
 * A thread per process publishes a heartbeat and what the rank does (base/phase.h) to the ranks of
 * its host through shared memory. A rank that has waited in one collective call for `timeout_s`
 * looks who is missing: a process that is gone, stopped (no heartbeat), or alive but not waiting,
 * and names rank, host, step and phase of it on stderr. Then it ends the process with status 1; the
 * watchdogs of the other ranks of the host end theirs. A process that is gone is named after a wait
 * of half a second already, and by the rank before it even if that does not wait in a call (but for
 * its device, say): before mpirun ends the rest.
 *
 * Hosts tell each other every second, by datagrams beside MPI, which of their ranks the others may
 * have to wait for, and its step and phase. So a rank that waits for another host names the rank
 * that is late there, or the host that is no longer heard of, two seconds later than that host
 * itself would. Where datagrams (UDP over IPv4) do not pass, all that can be said is who waits.
 * Where ranks of a host share no memory, the watchdog warns and is off.
 */
#pragma once

#include "comm/comm.h"

typedef struct moert_watchdog moert_watchdog;

/* timeout_s = 0 gives a watchdog that never ends anything. Collective. */
moert_status moert_watchdog_start(moert_comm *comm, unsigned timeout_s, moert_watchdog **watchdog);
/*
 * To be called by a rank that is about to report a failure and to abort: true for the first of its
 * host, which is to speak; the others would only repeat it, and other hosts that have heard of it.
 * Within two seconds the watchdogs end all ranks that are then still there, also those that ignore
 * SIGTERM. True without a table. Not collective. NULL is legal.
 */
bool moert_watchdog_claim(moert_watchdog *watchdog);
/* Whether it watches: false without a table or a limit. */
bool moert_watchdog_is_on(const moert_watchdog *watchdog);
/* Waits for all ranks, then leaves. Collective, before moert_comm_destroy. NULL is legal. */
void moert_watchdog_stop(moert_watchdog *watchdog);
