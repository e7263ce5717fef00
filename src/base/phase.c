/* What this process is doing, for the watchdog. */
#include "base/phase.h"

#include <stdatomic.h>
#include <stddef.h>

#include "base/clock.h"

static _Atomic uint64_t step, ticks;
static _Atomic(const char *) phase;
static atomic_int waiting;

/* Of the thread that listens, which need not be the only one that waits. */
static _Thread_local struct {
    moert_phase_listener *waited;
    void *context;
    uint64_t began_ns;
    int depth;
} listener;

void moert_phase_set_step(uint64_t number) {
    atomic_store(&step, number);
    atomic_fetch_add(&ticks, 1);
}

void moert_phase_set(const char *name) {
    atomic_store(&phase, name);
    atomic_fetch_add(&ticks, 1);
}

void moert_phase_tick(void) {
    atomic_fetch_add(&ticks, 1);
}

void moert_phase_wait_begin(void) {
    atomic_fetch_add(&waiting, 1);
    atomic_fetch_add(&ticks, 1);
    if (listener.waited != NULL && listener.depth++ == 0)
        listener.began_ns = moert_clock_ns();
}

void moert_phase_wait_end(void) {
    atomic_fetch_sub(&waiting, 1);
    atomic_fetch_add(&ticks, 1);
    if (listener.waited != NULL && listener.depth > 0 && --listener.depth == 0)
        listener.waited(listener.context, moert_phase_name(), moert_clock_ns() - listener.began_ns);
}

void moert_phase_listen(moert_phase_listener *waited, void *context) {
    listener.waited = waited;
    listener.context = context;
    listener.depth = 0;
}

uint64_t moert_phase_step(void) {
    return atomic_load(&step);
}

const char *moert_phase_name(void) {
    const char *name = atomic_load(&phase);
    return name != NULL ? name : "start";
}

uint64_t moert_phase_ticks(void) {
    return atomic_load(&ticks);
}

int moert_phase_waiting(void) {
    return atomic_load(&waiting);
}
