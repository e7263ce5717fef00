/* Monotonic time. */
#pragma once

#include <stdint.h>

/* Nanoseconds of CLOCK_MONOTONIC, comparable between processes of one machine. */
uint64_t moert_clock_ns(void);
