/* The timer's thread checks five times a second whether the process still waits in the same
 * call. */
#include "comm/watchdog/timer.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/phase.h"
#include "comm/launcher.h"

static const uint64_t second_ns = 1000000000u;
static const uint64_t beat_ns = 200000000u;    /* interval of the checks */
static const uint64_t silence_ns = 3000000000; /* if no check ran for so long, the process was
                                                  suspended */
static const uint64_t apart_ns = 1500000000u;  /* difference between the time limits of consecutive
                                                  ranks, since mpirun needs a second to end the
                                                  other ranks */
enum { MOST_APART = 4 };

static unsigned limit_s;
static _Atomic(const char *) place;
static atomic_int paused;

static _Noreturn void end_process(uint64_t waited_ns) {
    char line[512], host[64] = "";
    gethostname(host, sizeof host - 1);
    const int length =
        snprintf(line, sizeof line,
                 "moert: rank %zu on %s has waited for %llu s %s; ending the job "
                 "(MOERT_TIMEOUT_S=%u)\n",
                 moert_launcher_rank(), host, (unsigned long long)(waited_ns / second_ns),
                 atomic_load(&place), limit_s);
    const ssize_t ignored = write(STDERR_FILENO, line, moert_min((size_t)length, sizeof line - 1));
    (void)ignored;
    _exit(1);
}

static void *keep_time(void *argument) {
    const uint64_t most_ns =
        limit_s * second_ns + moert_min(moert_launcher_rank(), MOST_APART) * apart_ns;
    uint64_t since_ns = moert_clock_ns(), before_ns = since_ns, ticks = moert_phase_ticks();
    for (;;) {
        nanosleep(&(struct timespec){.tv_nsec = (long)beat_ns}, NULL);
        const uint64_t now_ns = moert_clock_ns(), seen = moert_phase_ticks();
        if (seen != ticks || moert_phase_waiting() == 0 || atomic_load(&paused) > 0 ||
            now_ns - before_ns > silence_ns)
            since_ns = now_ns;
        if (now_ns - since_ns >= most_ns)
            end_process(now_ns - since_ns);
        ticks = seen;
        before_ns = now_ns;
    }
    return argument;
}

moert_status moert_timer_start(unsigned timeout_s, const char *where) {
    sigset_t all, before;
    pthread_t thread;
    atomic_store(&place, where);
    limit_s = timeout_s;
    if (timeout_s == 0)
        return MOERT_OK;
    sigfillset(&all); /* blocks signals in the timer's thread, so that the program's threads handle
                         them */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int code = pthread_create(&thread, NULL, keep_time, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0)
        return MOERT_FAIL(ERROR_MEMORY, "the timer's thread does not start: %s", strerror(code));
    pthread_detach(thread);
    return MOERT_OK;
}

void moert_timer_place(const char *where) {
    atomic_store(&place, where);
}

void moert_timer_pause(void) {
    atomic_fetch_add(&paused, 1);
}

void moert_timer_resume(void) {
    atomic_fetch_sub(&paused, 1);
}
