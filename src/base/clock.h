/* Monotonic time. */
#pragma once

#include <stdint.h>

/* Nanoseconds of CLOCK_MONOTONIC; all processes of one machine share this clock. */
uint64_t moert_clock_ns(void);
