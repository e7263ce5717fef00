/*
 * Threads of a bench, one to a core: the caller is the last of them, the others sleep between the
 * calls. What a rival starts on its own is pinned to the same cores.
 */
#pragma once

#include "topology/topology.h"

typedef struct bench_pool bench_pool;

/* As many threads as the placement has cores, or `threads` if that is not 0. A placement without
 * cores (MOERT_BIND=0) pins nothing. */
moert_status bench_pool_create(const moert_placement *placement, size_t threads, bench_pool **pool);
void bench_pool_destroy(bench_pool *pool);
size_t bench_pool_size(const bench_pool *pool);

/* work(argument, member) on every thread; returns when all are done. */
void bench_pool_run(bench_pool *pool, void (*work)(void *argument, size_t member), void *argument);

/* Reads through memory on every thread, so that nothing older is left in its core's L2 cache. */
void bench_pool_evict(bench_pool *pool);
size_t bench_pool_cache_bytes(const bench_pool *pool); /* of L2, of all cores */

/* Pins the threads started since the snapshot, one to a core in turn; frees the snapshot. */
moert_status bench_pin_since(const moert_placement *placement, moert_thread_snapshot *snapshot);

/* Seconds for which threads of this process were ready to run and had no core, so far (Linux counts
 * them); with or without the calling thread. 0 when that is not known. A contender that divides its
 * work evenly loses more to other programs than one that does not, so that ratios taken on a busy
 * machine mislead. */
double bench_waited_seconds(bool caller_too);

void bench_sleep(double seconds);
