/* Writes signs of long activities. */
#include "tools/common/signs.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/files.h"
#include "base/progress.h"

static pthread_t thread;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ends_now = PTHREAD_COND_INITIALIZER;
static bool runs, ends, on_terminal;
static bool shown; /* a sign is on the terminal's last line */
static uint64_t
    began_ns;         /* the activity of the last line in a file, and the time after which the */
static double next_s; /* next line about it follows */

static void put(const moert_progress *now, double seconds) {
    fprintf(stderr, "%s%s", on_terminal ? "\r\033[K" : "... ", now->what);
    if (now->of > 0)
        fprintf(stderr, ": %zu of %zu", now->done, now->of);
    else if (now->done > 0)
        fprintf(stderr, ": %zu so far", now->done);
    fprintf(stderr, ", %.0f s%s", seconds, on_terminal ? "" : "\n");
    fflush(stderr);
    shown = on_terminal;
}

static void clear(void) {
    if (shown) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    shown = false;
}

/* When the next line about an activity is due that has taken `seconds`: after 2, 10, 30 and 60
 * seconds, then every minute. */
static double next_line(double seconds) {
    return seconds < 2.0    ? 2.0
           : seconds < 10.0 ? 10.0
           : seconds < 30.0 ? 30.0
                            : 60.0 * (double)((long)(seconds / 60.0) + 1);
}

/* Writes a sign of the present activity if one is due. */
static void look(void) {
    moert_progress now;
    if (!moert_progress_get(&now)) {
        clear();
        return;
    }
    const double seconds = 1e-9 * (double)(moert_clock_ns() - now.began_ns);
    if (now.began_ns != began_ns) {
        began_ns = now.began_ns;
        next_s = next_line(seconds); /* beyond 2 s if the activity contains the last one */
    }
    if (seconds < next_s)
        return;
    put(&now, seconds);
    if (!on_terminal)
        next_s = next_line(seconds);
}

/* Removes the sign of an activity that has ended before other lines follow. */
static void when_ended(void) {
    pthread_mutex_lock(&mutex);
    clear();
    pthread_mutex_unlock(&mutex);
}

static void *work(void *unused) {
    struct timespec until;
    (void)unused;
    pthread_mutex_lock(&mutex);
    while (!ends) {
        look();
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 250000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&ends_now, &mutex, &until);
    }
    clear();
    pthread_mutex_unlock(&mutex);
    return NULL;
}

void moert_signs_begin(void) {
    sigset_t all, before;
    on_terminal = moert_is_watched(stderr);
    sigfillset(&all); /* the thread must not take the signals of the main thread */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    runs = pthread_create(&thread, NULL, work, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (runs && on_terminal)
        moert_progress_listen(when_ended);
}

void moert_signs_end(void) {
    if (!runs)
        return;
    moert_progress_listen(NULL);
    pthread_mutex_lock(&mutex);
    ends = true;
    pthread_cond_signal(&ends_now);
    pthread_mutex_unlock(&mutex);
    pthread_join(thread, NULL);
    runs = ends = false;
}
