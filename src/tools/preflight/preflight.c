/* Gathers properties of every rank, and measures devices and links. */
#include "tools/preflight/preflight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/memory.h"
#include "base/dtype.h"
#include "base/phase.h"
#include "device/device.h"
#include "nn/nn.h"
#include "tools/tune/gemm.h"

enum { CLOCK_SAMPLES = 9 };

/* ---- facts ---- */

static size_t free_shm_bytes(void) {
    struct statvfs shm;
    return statvfs("/dev/shm", &shm) == 0 ? (size_t)shm.f_bavail * shm.f_frsize : 0;
}

/* Writes "NAME=value ..." for all variables that are set, except paths, which may differ between
 * hosts. */
static void list_settings(char *text) {
    size_t used = 0;
    moert_variable v;
    text[0] = '\0';
    for (size_t i = 0; moert_config_variable(i, &v) && used < MOERT_PREFLIGHT_TEXT_BYTES; i++)
        if (v.value != NULL && strstr(v.name, "_DIR") == NULL && strstr(v.name, "_FILE") == NULL)
            used += (size_t)snprintf(text + used, MOERT_PREFLIGHT_TEXT_BYTES - used, "%s%s=%s",
                                     used > 0 ? " " : "", v.name, v.value);
}

static void look_around(moert_context *context, const char *commit, moert_preflight_rank *mine) {
    const moert_comm *world = moert_context_comm(context);
    const moert_device_info *device = moert_device_describe(moert_context_device(context));
    const moert_placement *placement = moert_context_placement(context);
    const size_t rank = moert_comm_rank(world);
    snprintf(mine->host, sizeof mine->host, "%s", moert_comm_host(world, rank));
    mine->node = moert_comm_node(world, rank);
    snprintf(mine->commit, sizeof mine->commit, "%s %s", MOERT_VERSION, commit);
    moert_comm_library(mine->mpi, sizeof mine->mpi);
    snprintf(mine->device, sizeof mine->device, "%s", device->name);
    snprintf(mine->driver, sizeof mine->driver, "%s, %s", device->platform_name, device->driver);
    list_settings(mine->settings);
    mine->cores = placement->cpu_count > 0 ? placement->cpu_count : device->compute_units;
    mine->shared = placement->shared;
    mine->timeout_s = moert_config_get()->timeout_s;
    mine->watched = moert_context_is_watched(context);
    mine->shm_bytes = free_shm_bytes();
    mine->memory_bytes = moert_memory_available();
}

/* ---- clocks ---- */

static double wall_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* *skew = this rank's wall clock minus rank 0's: the median over clock readings that follow
 * barriers. Collective. */
static moert_status compare_clocks(moert_comm *world, double *skew) {
    double samples[CLOCK_SAMPLES], mine, zero;
    for (int i = 0; i < CLOCK_SAMPLES; i++) {
        MOERT_TRY(moert_comm_barrier(world));
        mine = zero = wall_seconds();
        MOERT_TRY(moert_comm_broadcast(world, 0, &zero, sizeof zero));
        samples[i] = mine - zero;
    }
    moert_sort_numbers(samples, CLOCK_SAMPLES);
    *skew = samples[CLOCK_SAMPLES / 2];
    return MOERT_OK;
}

/* ---- stress ---- */

/* *hash = the hash of the results of a GEMM. */
static moert_status hash_gemm(moert_tune_gemm *gemm, moert_buffer **scratch, uint64_t *hash) {
    *hash = 0;
    MOERT_TRY(moert_gemm_run(&gemm->gemm));
    return moert_digest_floats(gemm->gemm.y.buffer, 0, gemm->gemm.groups.rows * gemm->gemm.n,
                               scratch, hash);
}

/* Computes the same GEMM again and again for `seconds`. Counts the results whose bits differ from
 * the first result. */
static moert_status stress(moert_device *device, double seconds, moert_preflight_rank *mine) {
    const size_t side = moert_device_describe(device)->is_gpu ? 4096 : 512;
    const moert_gemm_shape shape = {4, side / 4, side, side, NULL};
    const uint64_t end = moert_clock_ns() + (uint64_t)(1e9 * seconds);
    moert_tune_gemm gemm;
    moert_buffer *scratch = NULL;
    uint64_t first, hash;
    bool possible;
    moert_phase_set(MOERT_PHASE_GEMM_RATE);
    MOERT_TRY(moert_tune_gemm_create(device, MOERT_TUNED_FORWARD, moert_rates_type(device), &shape,
                                     &gemm, &possible));
    moert_status status = possible ? hash_gemm(&gemm, &scratch, &first) : MOERT_OK;
    for (; possible && status == MOERT_OK && moert_clock_ns() < end; mine->runs++) {
        status = hash_gemm(&gemm, &scratch, &hash);
        mine->wrong_runs += hash != first;
        moert_phase_tick();
    }
    if (possible && status == MOERT_OK)
        snprintf(mine->results, sizeof mine->results, "%016llx", (unsigned long long)first);
    moert_buffer_destroy(scratch);
    moert_tune_gemm_destroy(&gemm);
    return status;
}

/* ---- links ---- */

/* Measures the links among the ranks of one colour, and stores them in links[R], this rank's row of
 * the links. Collective. */
static moert_status measure_group(moert_comm *world, size_t color, double seconds,
                                  moert_link *links) {
    moert_comm *group;
    moert_link *found = NULL;
    size_t *rank_of = NULL;
    MOERT_TRY(moert_comm_split(world, color, &group));
    const size_t size = moert_comm_size(group), me = moert_comm_rank(world);
    moert_status status = MOERT_NEW_ARRAY(&found, size);
    if (status == MOERT_OK)
        status = MOERT_NEW_ARRAY(&rank_of, size);
    MOERT_TRY_OR(done, moert_comm_agree(world, status));
    MOERT_TRY_OR(done, moert_comm_allgather(group, &me, sizeof me, rank_of));
    MOERT_TRY_OR(done, moert_links_measure(group, seconds, found));
    for (size_t i = 0; i < size; i++)
        if (rank_of[i] != me)
            links[rank_of[i]] = found[i];
done:
    MOERT_FREE(rank_of, found);
    moert_comm_destroy(group);
    return status;
}

/* Measures links among the ranks of each node. Then measures links among the ranks with the same
 * index on their nodes, since each of these ranks may have its own network device. Collective. */
static moert_status measure_links(moert_comm *world, double seconds, moert_preflight *all) {
    const size_t ranks = all->ranks, bytes = ranks * sizeof *all->links;
    moert_link *mine;
    moert_status status;
    MOERT_TRY(moert_comm_agree(world, MOERT_NEW_ARRAY(&mine, ranks)));
    MOERT_TRY_OR(
        done, measure_group(world, moert_comm_node(world, moert_comm_rank(world)), seconds, mine));
    MOERT_TRY_OR(done, measure_group(world, moert_comm_node_rank(world), seconds, mine));
    MOERT_TRY_OR(done, moert_comm_allgather(world, mine, bytes, all->links));
done:
    free(mine);
    return status;
}

/* ---- all ---- */

moert_status moert_preflight_gather(moert_context *context, const char *commit, double stress_s,
                                    double links_s, moert_preflight *all) {
    moert_comm *world = moert_context_comm(context);
    moert_preflight_rank *mine = NULL;
    all->ranks = moert_comm_size(world);
    moert_status status = MOERT_NEW_ARRAY(&all->rank, all->ranks);
    if (status == MOERT_OK)
        status = MOERT_NEW_ARRAY(&all->links, all->ranks * all->ranks);
    if (status == MOERT_OK)
        status = MOERT_NEW(&mine);
    MOERT_TRY_OR(done, moert_comm_agree(world, status));
    look_around(context, commit, mine);
    moert_phase_set(MOERT_PHASE_CLOCKS);
    MOERT_TRY_OR(done, compare_clocks(world, &mine->skew_s));
    status = moert_rates_measure(moert_context_device(context), &mine->rates);
    if (status == MOERT_OK)
        status = stress(moert_context_device(context), stress_s, mine);
    MOERT_TRY_OR(done, moert_comm_agree(world, status));
    MOERT_TRY_OR(done, measure_links(world, links_s, all));
    MOERT_TRY_OR(done, moert_comm_allgather(world, mine, sizeof *mine, all->rank));
done:
    free(mine);
    return status;
}

void moert_preflight_free(moert_preflight *all) {
    MOERT_FREE(all->rank, all->links);
    *all = (moert_preflight){0};
}
