/* A stack of activities. */
#include "base/progress.h"

#include <pthread.h>
#include <string.h>

#include "base/clock.h"

enum { DEEPEST = 8 };
static const uint64_t gap_ns = 2000000000;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static moert_progress stack[DEEPEST], last; /* last: the activity that ended last */
static uint64_t ended_ns;
static size_t depth;
static void (*listener)(void);

void moert_progress_begin(const char *what, size_t of) {
    const uint64_t now = moert_clock_ns();
    pthread_mutex_lock(&mutex);
    if (depth < DEEPEST) {
        const bool again =
            last.what != NULL && strcmp(last.what, what) == 0 && now - ended_ns < gap_ns;
        stack[depth] = again ? last : (moert_progress){what, 0, 0, now};
        stack[depth].of = of;
    }
    depth++;
    pthread_mutex_unlock(&mutex);
}

void moert_progress_add(size_t parts) {
    pthread_mutex_lock(&mutex);
    if (depth > 0 && depth <= DEEPEST)
        stack[depth - 1].done += parts;
    pthread_mutex_unlock(&mutex);
}

void moert_progress_end(void) {
    pthread_mutex_lock(&mutex);
    if (--depth < DEEPEST) {
        last = stack[depth];
        ended_ns = moert_clock_ns();
    }
    void (*const ended)(void) = listener;
    pthread_mutex_unlock(&mutex);
    if (ended != NULL)
        ended();
}

bool moert_progress_get(moert_progress *now) {
    pthread_mutex_lock(&mutex);
    const bool active = depth > 0 && depth <= DEEPEST;
    if (active)
        *now = stack[depth - 1];
    pthread_mutex_unlock(&mutex);
    return active;
}

void moert_progress_listen(void (*ended)(void)) {
    pthread_mutex_lock(&mutex);
    listener = ended;
    pthread_mutex_unlock(&mutex);
}
