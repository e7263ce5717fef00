/* Fills operands with copies or with a repeated pattern; picks the elements of a result to check.
 * */
#pragma once

#include "moert/device.h"

enum { BENCH_PATTERN = 1048573 }; /* elements: a prime number, so no row length divides it */

/* Creates a buffer with a copy of `data`, or zeros if it is NULL. The caller destroys it, also
 * after an error. */
moert_status bench_upload(moert_device *device, const void *data, size_t bytes,
                          moert_buffer **buffer);
/* Fills the buffer with repeats of pattern[BENCH_PATTERN], elements of `bytes`; starts with element
 * `start` of the pattern. */
moert_status bench_pattern_fill(moert_buffer *buffer, const void *pattern, size_t bytes,
                                size_t start);

/* A random index below `count` for sample i; sample 0 is the last index. */
size_t bench_pick(size_t seed, unsigned stream, size_t i, size_t count);
