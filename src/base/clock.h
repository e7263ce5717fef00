/* Monotonic time. */
#ifndef MOERT_BASE_CLOCK_H
#define MOERT_BASE_CLOCK_H

#include <stdint.h>

/* Nanoseconds of CLOCK_MONOTONIC, comparable between processes of one machine. */
uint64_t moert_clock_ns(void);

#endif
