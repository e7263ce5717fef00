/* Reads how long the threads of this process have waited for a core. */
#include "bench/common/quiet.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "topology/topology.h"

/* The second number of schedstat: nanoseconds on a run queue. */
static double waited_by(int thread) {
    char path[64];
    unsigned long long ran, waited = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", thread);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0.0;
    if (fscanf(file, "%llu %llu", &ran, &waited) != 2)
        waited = 0;
    fclose(file);
    return (double)waited * 1e-9;
}

double bench_waited_seconds(bool caller_too) {
    moert_thread_snapshot threads;
    double seconds = 0.0;
    if (moert_threads_snapshot(&threads) != MOERT_OK)
        return 0.0;
    for (size_t i = 0; i < threads.count; i++)
        if (caller_too || threads.ids[i] != gettid())
            seconds += waited_by(threads.ids[i]);
    free(threads.ids);
    return seconds;
}

void bench_sleep(double seconds) {
    const struct timespec time = {.tv_sec = (time_t)seconds,
                                  .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}
