/* Fills operands with copies or with a repeated pattern; picks the elements of a result to check.
 * */
#pragma once

#include "moert/device.h"

/* number of elements; a prime number, so it is not a multiple of any row length */
enum { BENCH_PATTERN = 1048573 };

/* Creates a buffer with a copy of `data`, or with zeros if `data` is NULL. The caller destroys the
 * buffer, also after an error. */
moert_status bench_upload(moert_device *device, const void *data, size_t bytes,
                          moert_buffer **buffer);
/* Fills the buffer with repeats of pattern[BENCH_PATTERN], whose elements have `bytes` bytes. The
 * buffer starts with element `start` of the pattern. */
moert_status bench_pattern_fill(moert_buffer *buffer, const void *pattern, size_t bytes,
                                size_t start);

/* Returns a random index below `count` for sample i; for sample 0, returns the last index. */
size_t bench_pick(size_t seed, unsigned stream, size_t i, size_t count);
