/* Threads of a bench, pinned, and the eviction of their caches. */
#include "bench/gemm/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/config.h"
#include "base/memory.h"

/* LINE: bytes of a cache line. SWEEP: bytes that an eviction reads, in multiples of the L2 cache */
enum { LINE = 64, SWEEP = 4 };

typedef struct member {
    bench_pool *pool;
    pthread_t thread;
    size_t number;
} member;

struct bench_pool {
    size_t size, started, sweep_bytes;
    member *members;
    unsigned char *sweep; /* [size][sweep_bytes] */
    pthread_barrier_t barrier;
    void (*work)(void *argument, size_t member); /* NULL ends the threads */
    void *argument;
};

static void *serve(void *argument) {
    const member *self = argument;
    bench_pool *pool = self->pool;
    for (;;) {
        pthread_barrier_wait(&pool->barrier);
        if (pool->work == NULL)
            return NULL;
        pool->work(pool->argument, self->number);
        pthread_barrier_wait(&pool->barrier);
    }
}

moert_status bench_pin_since(const moert_placement *placement, moert_thread_snapshot *snapshot) {
    moert_topology *topology;
    size_t pinned;
    moert_status status = MOERT_OK;
    if (placement->cpu_count > 0)
        status = moert_topology_create(moert_config_get()->topology, &topology);
    if (placement->cpu_count == 0 || status != MOERT_OK) {
        free(snapshot->ids);
        *snapshot = (moert_thread_snapshot){0};
        return status;
    }
    status = moert_threads_pin_new(topology, placement, snapshot, &pinned);
    moert_topology_destroy(topology);
    return status;
}

/* Pins the calling thread to the cores that the pool's other threads do not use. */
static void pin_caller(const bench_pool *pool) {
    cpu_set_t rest, taken;
    if (sched_getaffinity(0, sizeof rest, &rest) != 0)
        return;
    for (size_t i = 0; i < pool->started; i++)
        if (pthread_getaffinity_np(pool->members[i].thread, sizeof taken, &taken) == 0)
            for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
                if (CPU_ISSET(cpu, &taken))
                    CPU_CLR(cpu, &rest);
    if (CPU_COUNT(&rest) > 0)
        sched_setaffinity(0, sizeof rest, &rest);
}

static moert_status start(bench_pool *pool, const moert_placement *placement) {
    moert_thread_snapshot before;
    MOERT_TRY(moert_threads_snapshot(&before));
    for (; pool->started + 1 < pool->size; pool->started++) {
        member *next = &pool->members[pool->started];
        *next = (member){.pool = pool, .number = pool->started};
        if (pthread_create(&next->thread, NULL, serve, next) != 0) {
            free(before.ids);
            return MOERT_FAIL(ERROR_MEMORY, "cannot start thread %zu", pool->started);
        }
    }
    MOERT_TRY(bench_pin_since(placement, &before));
    if (placement->cpu_count > 0)
        pin_caller(pool);
    return MOERT_OK;
}

static void release(bench_pool *pool) {
    MOERT_FREE(pool->members, pool->sweep, pool);
}

moert_status bench_pool_create(const moert_placement *placement, size_t threads,
                               bench_pool **made) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN), cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
    moert_status status;
    bench_pool *pool;
    MOERT_TRY(MOERT_NEW(&pool));
    pool->size = threads > 0                ? threads
                 : placement->cpu_count > 0 ? placement->cpu_count
                                            : (size_t)moert_max(1, (size_t)online);
    pool->sweep_bytes = SWEEP * (cache > 0 ? (size_t)cache : (size_t)1 << 20);
    MOERT_TRY_OR(free_pool, MOERT_NEW_ARRAY(&pool->members, pool->size));
    MOERT_TRY_OR(free_pool, moert_alloc(&pool->sweep, pool->size, pool->sweep_bytes));
    memset(pool->sweep, 1, pool->size * pool->sweep_bytes);
    pthread_barrier_init(&pool->barrier, NULL, (unsigned)pool->size);
    MOERT_TRY_OR(free_pool, start(pool, placement));
    *made = pool;
    return MOERT_OK;
free_pool
    /* if a thread cannot be started, the threads already started wait until the process ends, so
     * their memory must stay */
    :
    if (pool->started == 0)
        release(pool);
    return status;
}

void bench_pool_destroy(bench_pool *pool) {
    if (pool == NULL)
        return;
    pool->work = NULL;
    pthread_barrier_wait(&pool->barrier);
    for (size_t i = 0; i < pool->started; i++)
        pthread_join(pool->members[i].thread, NULL);
    pthread_barrier_destroy(&pool->barrier);
    release(pool);
}

size_t bench_pool_size(const bench_pool *pool) {
    return pool->size;
}

void bench_pool_run(bench_pool *pool, void (*work)(void *argument, size_t member), void *argument) {
    pool->work = work;
    pool->argument = argument;
    pthread_barrier_wait(&pool->barrier);
    work(argument, pool->size - 1);
    pthread_barrier_wait(&pool->barrier);
}

static void sweep(void *argument, size_t number) {
    const bench_pool *pool = argument;
    const volatile unsigned char *memory = pool->sweep + number * pool->sweep_bytes;
    for (size_t i = 0; i < pool->sweep_bytes; i += LINE)
        (void)memory[i];
}

void bench_pool_evict(bench_pool *pool) {
    bench_pool_run(pool, sweep, pool);
}

size_t bench_pool_cache_bytes(const bench_pool *pool) {
    return pool->size * pool->sweep_bytes / SWEEP;
}

/* ---- other programs ---- */

/* The second number of schedstat: nanoseconds on a run queue. */
static double waited_by(int thread) {
    char path[64];
    unsigned long long ran, waited = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", thread);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return 0.0;
    if (fscanf(file, "%llu %llu", &ran, &waited) != 2)
        waited = 0;
    fclose(file);
    return (double)waited * 1e-9;
}

double bench_waited_seconds(bool caller_too) {
    moert_thread_snapshot threads;
    double seconds = 0.0;
    if (moert_threads_snapshot(&threads) != MOERT_OK)
        return 0.0;
    for (size_t i = 0; i < threads.count; i++)
        if (caller_too || threads.ids[i] != gettid())
            seconds += waited_by(threads.ids[i]);
    free(threads.ids);
    return seconds;
}

void bench_sleep(double seconds) {
    const struct timespec time = {.tv_sec = (time_t)seconds,
                                  .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}
