/*
 * Long loops of the host on all processors that the calling thread may use, by threads that live as
 * long as the loop.
 */
#pragma once

#include <stddef.h>

/* Some of the numbers 0..count-1: [first, end). */
typedef void moert_parallel_work(void *context, size_t first, size_t end);

/*
 * Calls `work` for parts that together are [0, count), at the same time, and returns when all have
 * returned. Each part but the last has at least `least` numbers, so less work than that takes one
 * thread.
 */
void moert_parallel(size_t count, size_t least, moert_parallel_work *work, void *context);
