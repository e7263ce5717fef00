/* Monotonic time. */
#include "base/clock.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "base/memory.h"

uint64_t moert_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

enum { YIELD_NS = 1000000, LONGEST_NAP_NS = 1000000 };

static atomic_bool awake;

void moert_clock_stay_awake(void) {
    atomic_store(&awake, true);
}

void moert_clock_pause(uint64_t begun_ns) {
    const uint64_t waited = moert_clock_ns() - begun_ns;
    const struct timespec nap = {.tv_nsec = (long)moert_min(waited / 16, LONGEST_NAP_NS)};
    if (waited < YIELD_NS || atomic_load(&awake))
        sched_yield();
    else
        nanosleep(&nap, NULL);
}
