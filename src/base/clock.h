/* Monotonic time. */
#pragma once

#include <stdint.h>

/* Nanoseconds of CLOCK_MONOTONIC; all processes of one machine share this clock. */
uint64_t moert_clock_ns(void);

/* Yields or sleeps in a polling loop that began at `begun_ns`. A short wait yields. A longer wait
 * sleeps, each time for a sixteenth of the wait so far, so that waiting ranks leave shared cores to
 * working ranks. */
void moert_clock_pause(uint64_t begun_ns);

/* From now on moert_clock_pause only yields. If MPI copies a large message in many pieces, each
 * sleep of the sender or the receiver delays the next pieces. Call this in processes whose device
 * computes without the host's cores. */
void moert_clock_stay_awake(void);
