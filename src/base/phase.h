/*
 * What this process is doing, for the watchdog: the step and a phase's name (a string literal).
 * Process-wide, lock-free.
 */
#ifndef MOERT_BASE_PHASE_H
#define MOERT_BASE_PHASE_H

#include <stdint.h>

void moert_phase_set_step(uint64_t step);
void moert_phase_set(const char *name);

/* Tells that a long phase gets on. */
void moert_phase_tick(void);

/* Bracket a blocking collective call: the rank then waits for others, and its own lateness is not
 * its fault. */
void moert_phase_wait_begin(void);
void moert_phase_wait_end(void);

/* From now on `waited` is told how long each such bracket of this thread was; NULL ends it. */
typedef void moert_phase_listener(void *context, const char *phase, uint64_t ns);
void moert_phase_listen(moert_phase_listener *waited, void *context);

uint64_t moert_phase_step(void);
const char *moert_phase_name(void); /* never NULL */
uint64_t moert_phase_ticks(void); /* grows with every set, begin and end: no growth = no progress */
int moert_phase_waiting(void);

#endif
