/* The step and phase of this process. */
#include "base/phase.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/clock.h"

static _Atomic uint64_t step, ticks, ticks_beside;
static atomic_int phase, waiting;

static _Thread_local bool is_beside;

/* The listener of this thread; other threads may also wait. */
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
    return atomic_load(&ticks);
}

int moert_phase_waiting(void) {
    return atomic_load(&waiting);
}
