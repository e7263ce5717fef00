/* Implements barriers of the ranks' devices (see flags.h). */
#include "exchange/window/flags.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/memory.h"
#include "base/phase.h"
#include "device/device.h"
#include "device/launch.h"
#include "device/queue.h"
#include "device/staging.h"

enum { LINE_BYTES = 64, BARRIERS = 256, LONGEST_S = 86400 };

/* Which rank was late at which barrier; kernels store these words (kernels/exchange/barrier.h). */
typedef struct verdict {
    uint32_t late;   /* 1 + the late rank; 0: no rank was late */
    uint32_t number; /* number of the barrier */
} verdict;
/* The kernels' state (kernels/exchange/barrier.h): the verdict, the arrival counter, then the
 * addresses of the ranks' segments from here on. */
enum { ADDRESSES = 2 * LINE_BYTES };

struct moert_flags {
    moert_device *device;
    moert_comm *comm;
    moert_storage segment; /* this rank's flags: LINE_BYTES for each rank r, which raises flag r */
    moert_staging *state;
    uint64_t patience_ns;
    double tick_ns;              /* length in nanoseconds of a tick, the unit in which kernels
                                    measure waits */
    uint32_t number;             /* number of the last barrier */
    moert_phase phase[BARRIERS]; /* phase[n % BARRIERS]: the phase in which this rank enqueued
                                    barrier n */
};

static moert_barrier barrier_of_ranks(const moert_flags *flags, size_t ranks) {
    return (moert_barrier){
        .state = moert_staging_buffer(flags->state),
        .args = {.patience = (uint64_t)((double)flags->patience_ns / flags->tick_ns),
                 .ranks = (uint32_t)ranks,
                 .rank = (uint32_t)moert_comm_rank(flags->comm),
                 .number = (int32_t)flags->number},
    };
}

static moert_status launch(moert_flags *flags, moert_barrier barrier) {
    return MOERT_RUN(flags->device, "exchange/barrier", "barrier_of_devices",
                     ((moert_grid){1, 1, 1}), MOERT_ARG(barrier.state), MOERT_STRUCT(barrier.args));
}

/* The result of the kernel count_ticks (kernels/exchange/barrier.cl). */
typedef struct tick_count {
    uint64_t ticks, tick_is_ns;
} tick_count;

/* Polls a flag `polls` times on the device, then reads its tick counter; *ns = the time at which
 * the kernel ended. */
static moert_status count_ticks(const moert_flags *flags, const moert_buffer *result, size_t polls,
                                tick_count *counted, uint64_t *ns) {
    MOERT_TRY(MOERT_RUN(flags->device, "exchange/barrier", "count_ticks", ((moert_grid){1, 1, 1}),
                        MOERT_ARG(flags->segment.rows), MOERT_ARG(result), MOERT_ARG(polls)));
    MOERT_TRY(moert_device_finish(flags->device));
    *ns = moert_clock_ns();
    return moert_buffer_read(result, 0, counted, sizeof *counted);
}

/* Measures the length of a tick over a time so long that the start of a kernel is negligible. */
static moert_status measure_tick(moert_flags *flags) {
    const uint64_t long_ns = 50000000;
    tick_count before = {.tick_is_ns = 0}, after;
    uint64_t start_ns = 0, end_ns = 0;
    moert_buffer *result = NULL;
    moert_status status;
    flags->tick_ns = 1.0;
    MOERT_TRY(moert_buffer_create(flags->device, sizeof before, &result));
    MOERT_TRY_OR(release, moert_buffer_clear(result, 0, sizeof before));
    MOERT_TRY_OR(release, count_ticks(flags, result, 1, &before, &start_ns)); /* compiles it */
    for (size_t polls = 1 << 16; !before.tick_is_ns && end_ns - start_ns < long_ns; polls *= 2) {
        MOERT_TRY_OR(release, count_ticks(flags, result, 1, &before, &start_ns));
        MOERT_TRY_OR(release, count_ticks(flags, result, polls, &after, &end_ns));
        if (after.ticks <= before.ticks)
            MOERT_TRY_OR(release, MOERT_FAIL(ERROR_UNSUPPORTED, "the device's clock stands still"));
        flags->tick_ns = (double)(end_ns - start_ns) / (double)(after.ticks - before.ticks);
    }
release:
    moert_buffer_destroy(result);
    return status;
}

static moert_status begin(moert_flags *flags) {
    const size_t table_bytes = moert_comm_size(flags->comm) * sizeof(uint64_t);
    MOERT_TRY(moert_staging_create(flags->device, ADDRESSES + table_bytes, &flags->state));
    MOERT_TRY(moert_buffer_read(flags->segment.addresses, 0,
                                (char *)moert_staging_host(flags->state) + ADDRESSES, table_bytes));
    MOERT_TRY(moert_staging_copy_to_device(flags->state, 0, ADDRESSES + table_bytes));
    MOERT_TRY(
        moert_buffer_clear(flags->segment.rows, 0, moert_comm_size(flags->comm) * LINE_BYTES));
    MOERT_TRY(measure_tick(flags));
    MOERT_TRY(launch(flags, moert_flags_nobody(flags)));
    return moert_device_finish(flags->device);
}

moert_status moert_flags_create(moert_device *device, moert_comm *comm,
                                const moert_exchange_memory *memory, uint64_t patience_ns,
                                moert_flags **flags) {
    moert_flags *made = NULL;
    moert_status status = MOERT_NEW(&made);
    if (status == MOERT_OK) /* sets the fields before the ranks agree: if another rank has
                               failed, this rank destroys `made` */
        *made = (moert_flags){.device = device, .comm = comm, .patience_ns = patience_ns};
    MOERT_TRY_OR(undo, moert_comm_agree(comm, status));
    status = memory->create(device, comm, moert_comm_size(comm) * LINE_BYTES, &made->segment);
    if (status == MOERT_OK)
        status = begin(made);
    MOERT_TRY_OR(undo, moert_comm_agree(comm, status)); /* no rank raises a flag before all ranks
                                                           have their segments */
    *flags = made;
    return MOERT_OK;
undo:
    moert_flags_destroy(made);
    return status;
}

/* Whether each rank has a GPU that no other rank uses. */
static moert_status have_a_gpu_each(const moert_device *device, moert_comm *comm, bool *all) {
    enum { BYTES = sizeof((moert_device_info *)0)->pci };
    const moert_device_info *info = moert_device_describe(device);
    const size_t ranks = moert_comm_size(comm), rank = moert_comm_rank(comm);
    char(*addresses)[BYTES] = NULL;
    moert_status status;
    MOERT_TRY_OR(release, moert_comm_agree(comm, moert_alloc(&addresses, ranks, BYTES)));
    MOERT_TRY_OR(release, moert_comm_allgather(comm, info->pci, BYTES, addresses));
    bool alone = info->is_gpu && info->pci[0] != '\0';
    for (size_t r = 0; r < ranks; r++)
        alone = alone && (r == rank || strcmp(addresses[r], info->pci) != 0);
    MOERT_TRY_OR(release, moert_exchange_everyone(comm, alone, all));
release:
    free(addresses);
    return status;
}

moert_status moert_flags_wanted(const moert_device *device, moert_comm *comm, bool *wanted) {
    const unsigned sync = moert_config_get()->sync;
    bool own;
    MOERT_TRY(have_a_gpu_each(device, comm, &own));
    return moert_exchange_everyone(comm, sync == MOERT_SYNC_AUTO ? own : sync == MOERT_SYNC_DEVICE,
                                   wanted);
}

uint64_t moert_flags_patience_ns(void) {
    const moert_config *config = moert_config_get();
    return (config->timeout_s > 0 ? config->timeout_s : (uint64_t)LONGEST_S) * 750000000;
}

void moert_flags_destroy(moert_flags *flags) {
    if (flags == NULL)
        return;
    moert_device_finish(flags->device);
    moert_staging_destroy(flags->state);
    moert_storage_release(&flags->segment);
    free(flags);
}

moert_barrier moert_flags_nobody(const moert_flags *flags) {
    return barrier_of_ranks(flags, 0);
}

moert_barrier moert_flags_next(moert_flags *flags) {
    flags->number++;
    flags->phase[flags->number % BARRIERS] = moert_phase_get();
    return barrier_of_ranks(flags, moert_comm_size(flags->comm));
}

moert_status moert_flags_barrier(moert_flags *flags) {
    MOERT_TRY(launch(flags, moert_flags_next(flags)));
    return moert_device_flush(flags->device); /* the other ranks' devices wait for this kernel */
}

moert_status moert_flags_fetch_verdict(moert_flags *flags) {
    return moert_staging_copy_to_host(flags->state, 0, sizeof(verdict));
}

moert_status moert_flags_check_verdict(moert_flags *flags) {
    verdict *host = moert_staging_host(flags->state);
    const verdict seen = *host;
    if (seen.late == 0)
        return MOERT_OK;
    *host = (verdict){0, 0};
    MOERT_TRY(moert_staging_copy_to_device(flags->state, 0, sizeof *host));
    return MOERT_FAIL(
        ERROR_COMM,
        "the device of rank %u (%s) has not reached barrier %u, in phase '%s', within "
        "%.3g s; MOERT_SYNC=host waits as long as MOERT_TIMEOUT_S allows",
        seen.late - 1, moert_comm_host(flags->comm, seen.late - 1), seen.number,
        moert_phase_name(flags->phase[seen.number % BARRIERS]), (double)flags->patience_ns * 1e-9);
}
