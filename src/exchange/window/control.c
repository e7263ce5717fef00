/*
 * Opens and tests the window engine, and implements its barriers.
 *
 * OpenCL does not promise that a kernel's stores reach other processes, so the engine tests this
 * when it opens. A dispatch and a combine synchronise once each (moert_control_pass). Either the
 * host processes wait for their devices and then for each other, or the devices wait for each other
 * (exchange/window/flags.h). If the devices wait, the host processes still agree on their status
 * first. So a kernel only waits for kernels that all host processes will enqueue.
 */
#include "exchange/window/control.h"

#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "device/device.h"
#include "device/launch.h"

enum { LINE_BYTES = 64, PROBE_ROUNDS = 2 };
enum { MESSAGE_BYTES = 65536 }; /* the longest message of `gather` in shared memory */

/* ---- barriers ---- */

static volatile uint32_t *status_word(const moert_exchange *exchange, size_t rank, size_t barrier) {
    const moert_control *control = exchange->state;
    char *segment = moert_shared_segment(control->shared, rank);
    return (volatile uint32_t *)(void *)(segment + barrier % 2 * LINE_BYTES);
}

/*
 * Each rank has two status words, which barriers use alternately. A rank may enter barrier n + 1
 * while another rank still reads the words of barrier n, but it cannot enter barrier n + 2.
 * moert_shared_sync is a fence for all shared memory, also for all windows.
 */
moert_status moert_control_barrier(moert_exchange *exchange, moert_status status) {
    moert_control *control = exchange->state;
    size_t barrier = control->barriers++;
    bool failed = false;
    *status_word(exchange, moert_comm_rank(exchange->comm), barrier) = status;
    MOERT_TRY(moert_shared_sync(control->shared));
    for (size_t r = 0; r < moert_comm_size(exchange->comm); r++)
        failed = failed || *status_word(exchange, r, barrier) != MOERT_OK;
    return failed ? moert_comm_agree(exchange->comm, status) : MOERT_OK;
}

static void *message(const moert_exchange *exchange, size_t rank, size_t barrier) {
    const moert_control *control = exchange->state;
    return (char *)moert_shared_segment(control->shared, rank) + 2 * LINE_BYTES +
           barrier % 2 * MESSAGE_BYTES;
}

/* An all-gather between the host processes that is also their barrier. Each rank has two messages,
 * which calls use alternately, as barriers use the status words. */
moert_status moert_control_gather(moert_exchange *exchange, const void *mine, size_t bytes,
                                  void *all) {
    moert_control *control = exchange->state;
    control->needs_barrier = false; /* every host process has waited for its device, or all ranks
                                       return a failure */
    if (bytes > MESSAGE_BYTES)
        return moert_comm_allgather(exchange->comm, mine, bytes, all);
    const size_t barrier = control->barriers++;
    memcpy(message(exchange, moert_comm_rank(exchange->comm), barrier), mine, bytes);
    MOERT_TRY(moert_shared_sync(control->shared));
    for (size_t r = 0; r < moert_comm_size(exchange->comm); r++)
        memcpy((char *)all + r * bytes, message(exchange, r, barrier), bytes);
    return MOERT_OK;
}

moert_status moert_control_pass(moert_exchange *exchange, moert_status status) {
    const moert_control *control = exchange->state;
    if (control->flags == NULL)
        status = moert_first(status, moert_device_finish(exchange->device));
    MOERT_TRY(moert_control_barrier(exchange, status));
    return control->flags != NULL ? moert_flags_barrier(control->flags) : MOERT_OK;
}

moert_status moert_control_fetch_verdict(moert_exchange *exchange) {
    const moert_control *control = exchange->state;
    return control->flags != NULL ? moert_flags_fetch_verdict(control->flags) : MOERT_OK;
}

moert_status moert_control_check_verdict(moert_exchange *exchange) {
    const moert_control *control = exchange->state;
    return control->flags != NULL ? moert_flags_check_verdict(control->flags) : MOERT_OK;
}

/* ---- the start-up test ---- */

static moert_status probe_write(moert_exchange *exchange, unsigned ranks, unsigned round) {
    const moert_control *control = exchange->state;
    return MOERT_RUN(exchange->device, "exchange/exchange -DREMOTE=1", "probe_write",
                     ((moert_grid){1, 1, 1}), MOERT_ARG(control->probe.addresses),
                     MOERT_ARGS(moert_exchange_args, .ranks = ranks,
                                .rank = (uint32_t)moert_comm_rank(exchange->comm), .round = round));
}

static moert_status probe_read(moert_exchange *exchange, moert_buffer *wrong, unsigned ranks,
                               unsigned round) {
    const moert_control *control = exchange->state;
    uint32_t count;
    MOERT_TRY(MOERT_RUN(exchange->device, "exchange/exchange -DREMOTE=1", "probe_read",
                        ((moert_grid){1, 1, 1}), MOERT_ARG(control->probe.addresses),
                        MOERT_ARG(wrong),
                        MOERT_ARGS(moert_exchange_args, .ranks = ranks, .round = round)));
    MOERT_TRY(moert_buffer_read(wrong, 0, &count, sizeof count));
    if (count > 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "kernels read wrong values in %u of %u rows of the ranks' shared memory",
                          (unsigned)count, ranks * ranks);
    return MOERT_OK;
}

/*
 * Every rank writes into every segment and reads all segments. Two rounds detect a device that
 * reads a stale copy. All ranks return the same failure.
 */
static moert_status probe(moert_exchange *exchange) {
    unsigned ranks = (unsigned)moert_comm_size(exchange->comm);
    moert_buffer *wrong = NULL;
    moert_status status = moert_buffer_create(exchange->device, sizeof(uint32_t), &wrong);
    for (unsigned round = 0; round < PROBE_ROUNDS; round++) {
        if (status == MOERT_OK)
            status = probe_write(exchange, ranks, round);
        MOERT_TRY_OR(release, moert_control_pass(exchange, status));
        status = probe_read(exchange, wrong, ranks, round);
        MOERT_TRY_OR(release,
                     moert_control_pass(exchange, status)); /* no rank writes the next round before
                                                               all ranks have read this round */
    }
    MOERT_TRY_OR(release, moert_control_fetch_verdict(exchange));
    MOERT_TRY_OR(release, moert_device_finish(exchange->device));
    status = moert_control_check_verdict(exchange);
release:
    moert_buffer_destroy(wrong);
    return status;
}

void moert_control_close(moert_exchange *exchange) {
    moert_control *control = exchange->state;
    (void)moert_device_finish(exchange->device); /* kernels may still write to the shared memory */
    moert_event_free(control->combine_start);
    moert_event_free(control->combine_end);
    moert_flags_destroy(control->flags);
    moert_storage_release(&control->probe);
    moert_shared_destroy(control->shared);
    free(control);
    exchange->state = NULL;
}

/* Creates and tests flags if the devices wait for each other. */
static moert_status open_flags(moert_exchange *exchange) {
    moert_control *control = exchange->state;
    bool wanted;
    MOERT_TRY(moert_flags_wanted(exchange->device, exchange->comm, &wanted));
    if (!wanted)
        return MOERT_OK;
    moert_status status = moert_flags_create(exchange->device, exchange->comm, control->memory,
                                             moert_flags_patience_ns(), &control->flags);
    if (status == MOERT_OK)
        status = probe(exchange);
    status = moert_comm_agree(exchange->comm, status);
    if (status == MOERT_OK) {
        MOERT_INFO("the devices of the ranks wait for each other in barriers, without the hosts");
        return MOERT_OK;
    }
    moert_flags_destroy(control->flags);
    control->flags = NULL;
    if (moert_config_get()->sync == MOERT_SYNC_DEVICE)
        return status;
    MOERT_INFO("in barriers the hosts wait for their devices: %s", moert_last_error());
    return MOERT_OK;
}

/* Chooses how rows travel, the same on all ranks. A token's row is sent once per rank: on GPUs if
 * this saves enough bytes, since links between GPUs are slower than their memory; on CPUs always if
 * devices wait for each other, so that tests on CPUs also send rows once per rank. MOERT_PUSH: on
 * if it is on or sum on all ranks; off if on some rank it is off, or auto without Hopper's tensor
 * cores; otherwise on if the GEMM can scatter its rows. */
static moert_status choose_ways(moert_exchange *exchange) {
    moert_control *control = exchange->state;
    const moert_config *config = moert_config_get();
    const bool hopper =
        moert_device_describe(exchange->device)->nvidia == 90 &&
        config->tensor == MOERT_TENSOR_AUTO &&
        (config->backend == MOERT_BACKEND_AUTO || config->backend == MOERT_BACKEND_NVIDIA);
    const bool sums = config->push == MOERT_PUSH_SUM, on = sums || config->push == MOERT_PUSH_ON;
    bool always, sometimes;
    control->fuse = control->flags != NULL;
    control->one_copy_per_rank = !moert_device_describe(exchange->device)->is_cpu
                                     ? MOERT_ONE_COPY_IF_IT_SAVES
                                 : control->fuse ? MOERT_ONE_COPY_ALWAYS
                                                 : MOERT_ONE_COPY_NEVER;
    MOERT_TRY(moert_exchange_everyone(exchange->comm, on, &always));
    MOERT_TRY(moert_exchange_everyone(
        exchange->comm, on || (config->push == MOERT_PUSH_AUTO && hopper), &sometimes));
    control->push = always ? MOERT_PUSH_ON : sometimes ? MOERT_PUSH_AUTO : MOERT_PUSH_OFF;
    return moert_exchange_everyone(exchange->comm, sums, &exchange->sums);
}

/* The ranks agree on the status of each step before the next collective step. */
void moert_control_open(moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]) {
    moert_comm *comm = exchange->comm;
    moert_device *device = exchange->device;
    const moert_exchange_memory *memory = moert_memory_of(device);
    const size_t probe_bytes = moert_comm_size(comm) * LINE_BYTES;
    moert_control *control = NULL;
    moert_status status = moert_memory_look(memory, device, comm);
    if (status == MOERT_OK)
        status = MOERT_NEW(&control);
    if (!moert_exchange_goes_on(comm, status, reason)) {
        free(control);
        return;
    }
    control->memory = memory;
    exchange->state = control;
    status = moert_shared_create(comm, 2 * (LINE_BYTES + MESSAGE_BYTES), &control->shared);
    if (moert_exchange_goes_on(comm, status, reason) &&
        moert_exchange_goes_on(comm, memory->create(device, comm, probe_bytes, &control->probe),
                               reason) &&
        moert_exchange_goes_on(comm, probe(exchange), reason) &&
        moert_exchange_goes_on(comm, open_flags(exchange), reason) &&
        moert_exchange_goes_on(comm, choose_ways(exchange), reason))
        exchange->reserves_worst_case = memory->reserves_worst_case;
    else
        moert_control_close(exchange);
}
