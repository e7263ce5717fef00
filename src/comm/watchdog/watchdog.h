/*
 * Ends a job whose rank is dead, stopped or late, so that the other ranks do not wait for ever.
 *
 * A thread per process publishes a heartbeat and the phase of its rank (base/phase.h) to the ranks
 * of its host, through shared memory. A rank that has waited in one collective call for `timeout_s`
 * looks for the missing rank: a process that is gone, stopped (no heartbeat), or alive but not
 * waiting. The waiting rank's watchdog names the missing rank, with host, step and phase, on
 * stderr. Then the waiting rank's watchdog ends its process with status 1, and the watchdogs of the
 * host's other ranks end their processes. If a process is gone, a watchdog names it after only half
 * a second of waiting, before mpirun ends the other ranks. The preceding rank on the host names the
 * process that is gone even if the preceding rank waits outside of any call (for its device, for
 * example).
 *
 * Hosts send each other a datagram every second, independently of MPI. The datagram names the
 * host's rank for which other ranks may have to wait, with that rank's step and phase. So the
 * message of a rank that waits for another host names the late rank there, or the host that sends
 * no datagrams any more. A rank that waits for another host reports two or three seconds later than
 * that host itself would. Where datagrams (UDP over IPv4) do not pass, the message only says which
 * ranks wait. Where the ranks of a host share no memory, the watchdog warns and is off.
 */
#pragma once

#include "comm/comm.h"

typedef struct moert_watchdog moert_watchdog;

/*
 * Before the watchdog ends this process, it calls sink(user, message) on its own thread instead of
 * writing the message to stderr. If the sink returns true, the program ends its process itself. The
 * watchdog then stops watching. All calls that wait for other ranks return ERROR_TIMEOUT with the
 * message, including a call that is waiting at that time.
 */
typedef bool moert_watch_sink(void *user, const char *message);
void moert_watchdog_set_sink(moert_watchdog *watchdog, moert_watch_sink *sink, void *user);
/* Sets the time limit of this rank's waits. Not collective. */
void moert_watchdog_set_timeout(moert_watchdog *watchdog, unsigned timeout_s);
/* Between pause(true) and pause(false) no rank ends the job because this rank is late. Not
 * collective. */
void moert_watchdog_pause(moert_watchdog *watchdog, bool paused);

/* With timeout_s = 0 the watchdog never ends the job by itself. Collective. */
moert_status moert_watchdog_start(moert_comm *comm, unsigned timeout_s, moert_watchdog **watchdog);
/*
 * Call this before reporting a failure and aborting. Returns true for the first rank of its host,
 * which must print the message. Other ranks, and other hosts that have received this host's note,
 * would only repeat the message. Within two seconds the watchdogs end all ranks that still run,
 * also those that ignore SIGTERM. Returns true if the watchdog has no table. Not collective. NULL
 * is legal.
 */
bool moert_watchdog_claim(moert_watchdog *watchdog);
/* Whether the watchdog can end the job: false without a table or a time limit. */
bool moert_watchdog_is_on(const moert_watchdog *watchdog);
/* Waits for all ranks, then stops this rank's watchdog. Collective, before moert_comm_destroy. NULL
 * is legal. */
void moert_watchdog_stop(moert_watchdog *watchdog);
