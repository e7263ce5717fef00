/*
 * victim WAY: one rank of a job whose last rank fails at step 12 in the given way, for the
 * end-to-end tests of the watchdog. The other ranks wait for the last rank in a barrier.
 *
 *   kill, stop, late   the last rank is killed, is stopped, or computes
 *   alone              killed; the others wait outside of any call, as for their devices
 *   mixed              the last rank waits in a call that no other rank makes
 *   report             all ranks but rank 0 report a failure, ignore SIGTERM, and do not end
 *   sink               late; the other ranks take the watchdog's message and end by themselves
 *   init, start, end, finalize, exit
 *                      stopped before MPI_Init, before the watchdog's start, after its stop, after
 *                      the last collective call, or after MPI_Finalize
 *   nothing            no fault
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/config.h"
#include "base/memory.h"
#include "base/phase.h"
#include "comm/comm.h"
#include "comm/launcher.h"
#include "comm/watchdog/watchdog.h"

static const char *way;
static bool last;

static bool is(const char *name) {
    return strcmp(way, name) == 0;
}

/* Whether the last rank stops while the watchdog does not run, or there is no fault. */
static bool is_moment(void) {
    static const char *const moments[] = {"init", "start", "end", "finalize", "exit", "nothing"};
    for (size_t i = 0; i < MOERT_COUNT(moments); i++)
        if (is(moments[i]))
            return true;
    return false;
}

static void stop_at(const char *moment) {
    if (last && is(moment))
        raise(SIGSTOP);
}

/* Reports a failure. Only the rank that claims the watchdog prints a message. */
static void report(moert_watchdog *watchdog, size_t rank) {
    signal(SIGTERM, SIG_IGN);
    if (moert_watchdog_claim(watchdog))
        fprintf(stderr, "moert: rank %zu reports a failure\n", rank);
    sleep(60);
}

/* Takes the watchdog's message. The last rank then lets the watchdog end its process; the other
 * ranks end their processes themselves. */
static bool take_message(void *user, const char *message) {
    (void)user, (void)message;
    return !last;
}

static void fail(moert_comm *comm, moert_watchdog *watchdog) {
    /* the last rank waits long enough for a heartbeat and a datagram with step and phase. With
     * several hosts and `kill`, the last rank waits for several datagrams, because other hosts need
     * several to detect the end of a host */
    if (last)
        sleep(is("kill") && moert_comm_node_count(comm) > 1 ? 4 : 1);
    if (last && (is("kill") || is("alone")))
        raise(SIGKILL);
    if (is("alone"))
        sleep(60);
    stop_at("stop");
    if (is("sink"))
        moert_watchdog_set_sink(watchdog, take_message, NULL);
    if (last && is("mixed"))
        moert_phase_wait_begin();
    if (last && (is("late") || is("sink") || is("mixed")))
        sleep(60);
    if (is("report") && moert_comm_rank(comm) > 0)
        report(watchdog, moert_comm_rank(comm));
}

int main(int count, char **arguments) {
    moert_comm *comm;
    moert_watchdog *watchdog;
    way = count > 1 ? arguments[1] : "";
    moert_launcher_read();
    last = moert_launcher_rank() + 1 == moert_launcher_count();
    stop_at("init");
    if (moert_comm_init(&count, &arguments) != MOERT_OK ||
        moert_comm_create(moert_comm_world(), &comm) != MOERT_OK)
        return EXIT_FAILURE;
    stop_at("start");
    if (moert_watchdog_start(comm, moert_config_get()->timeout_s, &watchdog) != MOERT_OK)
        return EXIT_FAILURE;
    moert_phase_set_step(12);
    moert_phase_set(last ? MOERT_PHASE_DISPATCH : MOERT_PHASE_COMBINE);
    moert_comm_barrier(comm);
    if (!is_moment())
        fail(comm, watchdog);
    if (is("exit"))
        sleep(2); /* gives launch/environment enough time to find the ranks */
    if (moert_comm_barrier(comm) == MOERT_ERROR_TIMEOUT) {
        printf("ends by itself: %s\n", moert_last_error());
        fflush(stdout);
        _exit(5);
    }
    moert_watchdog_stop(watchdog);
    stop_at("end");
    moert_comm_barrier(comm);
    stop_at("finalize");
    moert_comm_destroy(comm);
    moert_comm_finalize();
    stop_at("exit");
    return EXIT_SUCCESS;
}
