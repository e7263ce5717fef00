/*
 * The threads of a bench, one per core. The calling thread is the last member of the pool; the
 * other members sleep between calls. Threads that the rival starts are pinned to the same cores.
 */
#pragma once

#include "topology/topology.h"

typedef struct bench_pool bench_pool;

/* Creates a pool with one thread for each core of the placement, or with `threads` threads if that
 * is not 0. With a placement without cores (MOERT_BIND=0), no thread is pinned. */
moert_status bench_pool_create(const moert_placement *placement, size_t threads, bench_pool **pool);
void bench_pool_destroy(bench_pool *pool);
size_t bench_pool_size(const bench_pool *pool);

/* Runs work(argument, member) on every thread; returns when all are done. */
void bench_pool_run(bench_pool *pool, void (*work)(void *argument, size_t member), void *argument);

/* Every thread reads enough memory to evict all older data from its core's L2 cache. */
void bench_pool_evict(bench_pool *pool);
/* size of the L2 caches of all cores together */
size_t bench_pool_cache_bytes(const bench_pool *pool);

/* Pins the threads that were started since the snapshot, one per core; frees the snapshot. */
moert_status bench_pin_since(const moert_placement *placement, moert_thread_snapshot *snapshot);

/* Seconds so far for which threads of this process were ready to run but had no core, as Linux
 * counts them, with or without the calling thread; 0 if unknown. Other programs slow down a library
 * that divides its work evenly more than one that does not, so ratios from a busy machine mislead.
 * */
double bench_waited_seconds(bool caller_too);

void bench_sleep(double seconds);
