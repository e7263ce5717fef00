/* Operands: copies, or a pattern of random numbers again and again; places where results are
 * checked. */
#pragma once

#include "device/device.h"

enum { BENCH_PATTERN = 1048573 }; /* elements: a prime number, so no row length divides it */

/* A buffer with a copy of `data`, or zeros where that is NULL. After an error, too, it is the
 * caller's. */
moert_status bench_upload(moert_device *device, const void *data, size_t bytes,
                          moert_buffer **buffer);
/* Fills the buffer with pattern[BENCH_PATTERN] of `bytes` each, from element `start` on. */
moert_status bench_pattern_fill(moert_buffer *buffer, const void *pattern, size_t bytes,
                                size_t start);

/* The index of sample i among `count`; sample 0 is the last. */
size_t bench_pick(size_t seed, unsigned stream, size_t i, size_t count);
