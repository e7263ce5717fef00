/* Runs a loop on several threads. */
#include "base/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>

#include "base/memory.h"

enum { MOST = 64 }; /* threads */

typedef struct part {
    moert_parallel_work *work;
    void *context;
    size_t first, end;
    pthread_t thread;
    bool started;
} part;

static size_t processors(void) {
    cpu_set_t set;
    const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return moert_min((size_t)moert_max(count, 1), MOST);
}

static void *run(void *argument) {
    const part *p = argument;
    p->work(p->context, p->first, p->end);
    return NULL;
}

/* The calling thread runs the parts whose threads could not be started, and the last part. */
void moert_parallel(size_t count, size_t least, moert_parallel_work *work, void *context) {
    part parts[MOST];
    const size_t worth = moert_max(count / moert_max(least, 1), 1);
    const size_t threads = worth > 1 ? moert_min(worth, processors()) : 1;
    for (size_t i = 0; i < threads; i++) {
        part *p = &parts[i];
        *p =
            (part){work, context, count * i / threads, count * (i + 1) / threads, .started = false};
        p->started = i + 1 < threads && pthread_create(&p->thread, NULL, run, p) == 0;
    }
    for (size_t i = 0; i < threads; i++)
        if (!parts[i].started)
            run(&parts[i]);
    for (size_t i = 0; i < threads; i++)
        if (parts[i].started)
            pthread_join(parts[i].thread, NULL);
}
