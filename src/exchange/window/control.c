/*
 * How the window engine opens, and how its ranks meet.
 *
 * OpenCL does not promise that a kernel's stores reach other processes, so opening the engine tests
 * it. A dispatch and a combine synchronise once each (moert_control_pass). Either the hosts wait
 * for their devices and then for each other; or the devices wait for each other
 * (exchange/window/flags.h), and the hosts agree on their status only, ahead of them: a kernel
 * waits only for those that all hosts are enqueuing.
 */
#include "exchange/window/control.h"

#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"

enum { LINE_BYTES = 64, PROBE_ROUNDS = 2, LONGEST_S = 86400 };
enum { TOLD_BYTES = 65536 }; /* the longest message of `gather` in shared memory */

/* ---- meetings ---- */

static volatile uint32_t *status_word(const moert_exchange *exchange, size_t rank, size_t meeting) {
    const moert_control *control = exchange->state;
    char *segment = moert_shared_segment(control->words, rank);
    return (volatile uint32_t *)(void *)(segment + meeting % 2 * LINE_BYTES);
}

/*
 * The words alternate between two places, since a rank may enter the next meeting while another
 * still reads this one's; it cannot enter the one after.
 * A sync is a fence for all memory that the ranks share, so this one serves every window.
 */
moert_status moert_control_barrier(moert_exchange *exchange, moert_status status) {
    moert_control *control = exchange->state;
    size_t meeting = control->meetings++;
    bool failed = false;
    *status_word(exchange, moert_comm_rank(exchange->comm), meeting) = status;
    MOERT_TRY(moert_shared_sync(control->words));
    for (size_t r = 0; r < moert_comm_size(exchange->comm); r++)
        failed = failed || *status_word(exchange, r, meeting) != MOERT_OK;
    return failed ? moert_comm_agree(exchange->comm, status) : MOERT_OK;
}

static void *message(const moert_exchange *exchange, size_t rank, size_t meeting) {
    const moert_control *control = exchange->state;
    return (char *)moert_shared_segment(control->words, rank) + 2 * LINE_BYTES +
           meeting % 2 * TOLD_BYTES;
}

/* A meeting, too, whose messages alternate likewise. */
moert_status moert_control_gather(moert_exchange *exchange, const void *mine, size_t bytes,
                                  void *all) {
    moert_control *control = exchange->state;
    control->behind = false; /* every host has waited for its device, or all fail */
    if (bytes > TOLD_BYTES)
        return moert_comm_allgather(exchange->comm, mine, bytes, all);
    const size_t meeting = control->meetings++;
    memcpy(message(exchange, moert_comm_rank(exchange->comm), meeting), mine, bytes);
    MOERT_TRY(moert_shared_sync(control->words));
    for (size_t r = 0; r < moert_comm_size(exchange->comm); r++)
        memcpy((char *)all + r * bytes, message(exchange, r, meeting), bytes);
    return MOERT_OK;
}

moert_status moert_control_pass(moert_exchange *exchange, moert_status status) {
    const moert_control *control = exchange->state;
    if (control->flags == NULL)
        status = moert_first(status, moert_device_finish(exchange->device));
    MOERT_TRY(moert_control_barrier(exchange, status));
    return control->flags != NULL ? moert_flags_barrier(control->flags) : MOERT_OK;
}

moert_status moert_control_fetch(moert_exchange *exchange) {
    const moert_control *control = exchange->state;
    return control->flags != NULL ? moert_flags_fetch(control->flags) : MOERT_OK;
}

moert_status moert_control_check(moert_exchange *exchange) {
    const moert_control *control = exchange->state;
    return control->flags != NULL ? moert_flags_check(control->flags) : MOERT_OK;
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
                          "kernels see %u of %u rows in the shared memory of other ranks wrongly",
                          (unsigned)count, ranks * ranks);
    return MOERT_OK;
}

/*
 * Every rank writes into every segment and reads all of them, twice, so that a device that keeps a
 * copy shows. All ranks fail alike.
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
        MOERT_TRY_OR(release, moert_control_pass(exchange,
                                                 status)); /* before anyone writes the next round */
    }
    MOERT_TRY_OR(release, moert_control_fetch(exchange));
    MOERT_TRY_OR(release, moert_device_finish(exchange->device));
    status = moert_control_check(exchange);
release:
    moert_buffer_destroy(wrong);
    return status;
}

void moert_control_close(moert_exchange *exchange) {
    moert_control *control = exchange->state;
    moert_event_free(control->branch);
    moert_event_free(control->landed);
    moert_flags_destroy(control->flags);
    moert_storage_release(&control->probe);
    moert_shared_destroy(control->words);
    free(control);
    exchange->state = NULL;
}

/* What excludes the engine before anything is made. Collective. */
static moert_status look(const moert_exchange *exchange, const moert_exchange_memory *memory) {
    moert_comm *comm = exchange->comm;
    const bool cpu = moert_device_describe(exchange->device)->is_cpu;
    bool all_cpus;
    MOERT_TRY(moert_exchange_everyone(comm, cpu, &all_cpus));
    if (moert_comm_node_count(comm) != 1)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "the ranks are on %zu hosts",
                          moert_comm_node_count(comm));
    if (cpu != all_cpus)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "rank %zu uses a CPU device, which others do not",
                          moert_comm_rank(comm));
    return memory->look != NULL ? memory->look(exchange->device, comm) : MOERT_OK;
}

/* ---- who waits ---- */

/* Whether AUTO lets the devices wait, which must run the kernels of all ranks at the same time:
 * GPUs that have one rank each. */
static moert_status have_own_gpus(moert_exchange *exchange, bool *all) {
    enum { BYTES = sizeof((moert_device_info *)0)->pci };
    const moert_device_info *info = moert_device_describe(exchange->device);
    const size_t ranks = moert_comm_size(exchange->comm), rank = moert_comm_rank(exchange->comm);
    char(*places)[BYTES];
    moert_status status;
    MOERT_TRY(moert_alloc(&places, ranks, BYTES));
    MOERT_TRY_OR(release, moert_comm_allgather(exchange->comm, info->pci, BYTES, places));
    bool alone = info->is_gpu && info->pci[0] != '\0';
    for (size_t r = 0; r < ranks; r++)
        alone = alone && (r == rank || strcmp(places[r], info->pci) != 0);
    MOERT_TRY_OR(release, moert_exchange_everyone(exchange->comm, alone, all));
release:
    free(places);
    return status;
}

/* Makes flags if the devices are to wait, and tests them. They are to tell who is late before the
 * watchdog ends the job, and wait for three quarters of its time. */
static moert_status open_flags(moert_exchange *exchange) {
    moert_control *control = exchange->state;
    const moert_config *config = moert_config_get();
    const uint64_t timeout_ms = 1000 * (config->timeout_s > 0 ? config->timeout_s : LONGEST_S);
    bool wanted = config->sync == MOERT_SYNC_DEVICE, own;
    MOERT_TRY(have_own_gpus(exchange, &own));
    MOERT_TRY(moert_exchange_everyone(exchange->comm,
                                      config->sync == MOERT_SYNC_AUTO ? own : wanted, &wanted));
    if (!wanted)
        return MOERT_OK;
    moert_status status = moert_flags_create(exchange->device, exchange->comm, control->memory,
                                             timeout_ms * 750000, &control->flags);
    if (status == MOERT_OK)
        status = probe(exchange);
    status = moert_comm_agree(exchange->comm, status);
    if (status == MOERT_OK) {
        MOERT_INFO("the ranks' devices wait for each other, without their hosts");
        return MOERT_OK;
    }
    moert_flags_destroy(control->flags);
    control->flags = NULL;
    if (config->sync == MOERT_SYNC_DEVICE)
        return status;
    MOERT_INFO("the hosts wait for their devices: %s", moert_last_error());
    return MOERT_OK;
}

/* Links between GPUs are taken to be slower than their memory; CPUs are to run the same kernels
 * where their devices wait. How results come back: sent if all ranks say so, fetched if one says that, else what products do.
 * Only those on Hopper's tensor cores send. */
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
    control->once = !moert_device_describe(exchange->device)->is_cpu ? MOERT_ONCE_IF_IT_SAVES
                    : control->fuse                                  ? MOERT_ONCE_ALWAYS
                                                                     : MOERT_ONCE_NEVER;
    MOERT_TRY(moert_exchange_everyone(exchange->comm, on, &always));
    MOERT_TRY(moert_exchange_everyone(
        exchange->comm, on || (config->push == MOERT_PUSH_AUTO && hopper), &sometimes));
    control->push = always ? MOERT_PUSH_ON : sometimes ? MOERT_PUSH_AUTO : MOERT_PUSH_OFF;
    return moert_exchange_everyone(exchange->comm, sums, &exchange->sums);
}

/* Each step is agreed on before the next collective one. */
void moert_control_open(moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]) {
    moert_comm *comm = exchange->comm;
    moert_device *device = exchange->device;
    const moert_exchange_memory *memory = moert_memory_of(device);
    const size_t probe_bytes = moert_comm_size(comm) * LINE_BYTES;
    moert_control *control = NULL;
    moert_status status = look(exchange, memory);
    if (status == MOERT_OK)
        status = MOERT_NEW(&control);
    if (!moert_exchange_goes_on(comm, status, reason)) {
        free(control);
        return;
    }
    control->memory = memory;
    exchange->state = control;
    status = moert_shared_create(comm, 2 * (LINE_BYTES + TOLD_BYTES), &control->words);
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
