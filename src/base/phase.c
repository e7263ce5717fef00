/* The step and phase of this process. */
#include "base/phase.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#include "base/clock.h"

static _Atomic uint64_t step, ticks, ticks_beside;
static atomic_int phase, waiting;

/* busy: the number of calls in progress that cannot call moert_phase_tick. busy_since_ns: when the
 * last such call began. ticked_at: the process's CPU time, in units of quantum_ns, at the last tick
 * that was counted for such a call. Within the watchdog's time limit, the watchdog's own thread
 * uses less CPU time than quantum_ns. */
static atomic_int busy;
static _Atomic uint64_t busy_since_ns, ticked_at;
static const uint64_t quantum_ns = 50000000, longest_ns = (uint64_t)600 * 1000000000u;

static _Thread_local bool is_beside;

/* The listener for this thread's waits; waits of other threads are not reported to it. */
static _Thread_local struct {
    moert_phase_listener *waited;
    void *context;
    uint64_t began_ns;
    int depth;
} listener;

const char *moert_phase_name(moert_phase which) {
    static const char *const names[] = {
#define PHASE_NAME(name, text) text,
        MOERT_PHASE_TABLE(PHASE_NAME)
#undef PHASE_NAME
    };
    return (unsigned)which < MOERT_PHASES ? names[which] : "unknown";
}

void moert_phase_set_step(uint64_t number) {
    atomic_store(&step, number);
    atomic_fetch_add(&ticks, 1);
}

void moert_phase_set(moert_phase which) {
    atomic_store(&phase, (int)which);
    atomic_fetch_add(&ticks, 1);
}

void moert_phase_tick(void) {
    atomic_fetch_add(is_beside ? &ticks_beside : &ticks, 1);
}

void moert_phase_busy_begin(void) {
    atomic_store(&busy_since_ns, moert_clock_ns());
    atomic_fetch_add(&busy, 1);
    moert_phase_tick();
}

void moert_phase_busy_end(void) {
    atomic_fetch_sub(&busy, 1);
    moert_phase_tick();
}

void moert_phase_beside(void) {
    is_beside = true;
}

uint64_t moert_phase_ticks_beside(void) {
    return atomic_load(&ticks_beside);
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
        listener.waited(listener.context, moert_phase_get(), moert_clock_ns() - listener.began_ns);
}

void moert_phase_listen(moert_phase_listener *waited, void *context) {
    listener.waited = waited;
    listener.context = context;
    listener.depth = 0;
}

uint64_t moert_phase_step(void) {
    return atomic_load(&step);
}

moert_phase moert_phase_get(void) {
    return (moert_phase)atomic_load(&phase);
}

uint64_t moert_phase_ticks(void) {
    if (atomic_load(&busy) > 0 && moert_clock_ns() - atomic_load(&busy_since_ns) < longest_ns) {
        struct timespec used;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
        const uint64_t now_ns = (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
        if (atomic_exchange(&ticked_at, now_ns / quantum_ns) != now_ns / quantum_ns)
            atomic_fetch_add(&ticks, 1);
    }
    return atomic_load(&ticks);
}

int moert_phase_waiting(void) {
    return atomic_load(&waiting);
}
