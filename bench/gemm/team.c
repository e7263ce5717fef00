/* Threads of a bench, pinned, and the eviction of their caches. */
#include "bench/gemm/team.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/config.h"
#include "base/memory.h"

enum { LINE = 64, SWEEP = 4 }; /* bytes of a cache line; size of the sweep in L2 caches */

typedef struct member {
    bench_team *team;
    pthread_t thread;
    size_t number;
} member;

struct bench_team {
    size_t size, started, sweep_bytes;
    member *members;
    unsigned char *sweep; /* [size][sweep_bytes] */
    pthread_barrier_t barrier;
    void (*work)(void *argument, size_t member); /* NULL ends the threads */
    void *argument;
};

static void *serve(void *argument) {
    const member *self = argument;
    bench_team *team = self->team;
    for (;;) {
        pthread_barrier_wait(&team->barrier);
        if (team->work == NULL)
            return NULL;
        team->work(team->argument, self->number);
        pthread_barrier_wait(&team->barrier);
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

/* Gives the caller what the other members leave over. */
static void pin_caller(const bench_team *team) {
    cpu_set_t rest, taken;
    if (sched_getaffinity(0, sizeof rest, &rest) != 0)
        return;
    for (size_t i = 0; i < team->started; i++)
        if (pthread_getaffinity_np(team->members[i].thread, sizeof taken, &taken) == 0)
            for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
                if (CPU_ISSET(cpu, &taken))
                    CPU_CLR(cpu, &rest);
    if (CPU_COUNT(&rest) > 0)
        sched_setaffinity(0, sizeof rest, &rest);
}

static moert_status start(bench_team *team, const moert_placement *placement) {
    moert_thread_snapshot before;
    MOERT_TRY(moert_threads_snapshot(&before));
    for (; team->started + 1 < team->size; team->started++) {
        member *next = &team->members[team->started];
        *next = (member){.team = team, .number = team->started};
        if (pthread_create(&next->thread, NULL, serve, next) != 0) {
            free(before.ids);
            return MOERT_FAIL(ERROR_MEMORY, "cannot start thread %zu", team->started);
        }
    }
    MOERT_TRY(bench_pin_since(placement, &before));
    if (placement->cpu_count > 0)
        pin_caller(team);
    return MOERT_OK;
}

static void release(bench_team *team) {
    MOERT_FREE(team->members, team->sweep, team);
}

moert_status bench_team_create(const moert_placement *placement, size_t threads,
                               bench_team **made) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN), cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
    moert_status status;
    bench_team *team;
    MOERT_TRY(MOERT_NEW(&team));
    team->size = threads > 0                ? threads
                 : placement->cpu_count > 0 ? placement->cpu_count
                                            : (size_t)moert_max(1, (size_t)online);
    team->sweep_bytes = SWEEP * (cache > 0 ? (size_t)cache : (size_t)1 << 20);
    MOERT_TRY_OR(free_team, MOERT_NEW_ARRAY(&team->members, team->size));
    MOERT_TRY_OR(free_team, moert_alloc(&team->sweep, team->size, team->sweep_bytes));
    memset(team->sweep, 1, team->size * team->sweep_bytes);
    pthread_barrier_init(&team->barrier, NULL, (unsigned)team->size);
    MOERT_TRY_OR(free_team, start(team, placement));
    *made = team;
    return MOERT_OK;
free_team: /* threads that wait for one that never came stay until the process ends */
    if (team->started == 0)
        release(team);
    return status;
}

void bench_team_destroy(bench_team *team) {
    if (team == NULL)
        return;
    team->work = NULL;
    pthread_barrier_wait(&team->barrier);
    for (size_t i = 0; i < team->started; i++)
        pthread_join(team->members[i].thread, NULL);
    pthread_barrier_destroy(&team->barrier);
    release(team);
}

size_t bench_team_size(const bench_team *team) {
    return team->size;
}

void bench_team_run(bench_team *team, void (*work)(void *argument, size_t member), void *argument) {
    team->work = work;
    team->argument = argument;
    pthread_barrier_wait(&team->barrier);
    work(argument, team->size - 1);
    pthread_barrier_wait(&team->barrier);
}

static void sweep(void *argument, size_t number) {
    const bench_team *team = argument;
    const volatile unsigned char *memory = team->sweep + number * team->sweep_bytes;
    for (size_t i = 0; i < team->sweep_bytes; i += LINE)
        (void)memory[i];
}

void bench_team_evict(bench_team *team) {
    bench_team_run(team, sweep, team);
}

size_t bench_team_cache_bytes(const bench_team *team) {
    return team->size * team->sweep_bytes / SWEEP;
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
