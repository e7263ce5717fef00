/*
 * Runs a long loop of the host on all processors that the calling thread may use. Creates threads
 * for one loop and joins them at its end.
 */
#pragma once

#include <stddef.h>

/* Does the iterations [first, end). */
typedef void moert_parallel_work(void *context, size_t first, size_t end);

/*
 * Divides the iterations [0, count) into parts, calls `work` for all parts at the same time, and
 * returns when all calls have returned. Each part has at least `least` iterations, except that
 * fewer than 2 * `least` run as one part on the calling thread.
 */
void moert_parallel(size_t count, size_t least, moert_parallel_work *work, void *context);
