/*
 * Ranks of one host on CPU devices: a window is a segment of shared memory, and the kernels of
 * every rank write and read the segments of all by address. No row is copied twice, none is packed.
 *
 * OpenCL does not promise that a kernel's stores reach other processes, so opening the engine tests
 * it. A dispatch and a combine synchronise once each: kernels, moert_device_finish, meet.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "exchange/internal.h"

enum { LINE_BYTES = 64, PROBE_ROUNDS = 2 };

/* The control segments: row r of the probe is written by rank r; then two status words. */
typedef struct moert_control {
    moert_shared *shared;
    moert_buffer *addresses; /* uint64 [ranks] */
    uint64_t meetings;
} moert_control;

static volatile uint32_t *status_word(const moert_exchange *exchange, size_t rank, size_t meeting) {
    const moert_control *control = exchange->state;
    char *segment = moert_shared_segment(control->shared, rank);
    size_t lines = moert_comm_size(exchange->comm) + meeting % 2;
    return (volatile uint32_t *)(void *)(segment + lines * LINE_BYTES);
}

/*
 * All ranks wait for each other, and learn whether one of them has failed: then all return that
 * failure. The words alternate between two places, since a rank may enter the next meeting while
 * another still reads this one's; it cannot enter the one after.
 * A sync is a fence for all memory that the ranks share, so this one serves every window.
 */
static moert_status meet(moert_exchange *exchange, moert_status status) {
    moert_control *control = exchange->state;
    size_t meeting = control->meetings++;
    bool failed = false;
    *status_word(exchange, moert_comm_rank(exchange->comm), meeting) = status;
    MOERT_TRY(moert_shared_sync(control->shared));
    for (size_t r = 0; r < moert_comm_size(exchange->comm); r++)
        failed = failed || *status_word(exchange, r, meeting) != MOERT_OK;
    return failed ? moert_comm_agree(exchange->comm, status) : MOERT_OK;
}

/* The table of all segments' addresses in this process, on the device. */
static moert_status make_addresses(moert_exchange *exchange, const moert_shared *shared,
                                   moert_buffer **addresses) {
    size_t ranks = moert_comm_size(exchange->comm);
    uint64_t *table;
    moert_status status;
    MOERT_TRY(moert_alloc(&table, ranks, sizeof *table));
    for (size_t r = 0; r < ranks; r++)
        table[r] = (uintptr_t)moert_shared_segment(shared, r);
    MOERT_TRY_OR(free_table,
                 moert_buffer_create(exchange->device, ranks * sizeof *table, addresses));
    MOERT_TRY_OR(free_table, moert_buffer_write(*addresses, 0, table, ranks * sizeof *table));
free_table:
    free(table);
    return status;
}

static moert_status allocate_window(const moert_window *window, size_t rows,
                                    moert_storage *storage) {
    moert_exchange *exchange = window->exchange;
    size_t bytes = rows * window->stride * sizeof(float);
    MOERT_TRY(moert_shared_create(exchange->comm, bytes, &storage->shared));
    MOERT_TRY(make_addresses(exchange, storage->shared, &storage->addresses));
    return moert_buffer_wrap(exchange->device,
                             moert_shared_segment(storage->shared, moert_comm_rank(exchange->comm)),
                             bytes, &storage->rows);
}

/* ---- the start-up test ---- */

static moert_status probe_write(moert_exchange *exchange, unsigned ranks, unsigned round) {
    const moert_control *control = exchange->state;
    unsigned rank = (unsigned)moert_comm_rank(exchange->comm);
    MOERT_TRY(MOERT_RUN(exchange->device, "exchange -DREMOTE=1", "probe_write",
                        ((moert_grid){1, 1, 1}), MOERT_ARG(control->addresses), MOERT_ARG(ranks),
                        MOERT_ARG(rank), MOERT_ARG(round)));
    return moert_device_finish(exchange->device);
}

static moert_status probe_read(moert_exchange *exchange, moert_buffer *wrong, unsigned ranks,
                               unsigned round) {
    const moert_control *control = exchange->state;
    uint32_t count;
    MOERT_TRY(MOERT_RUN(exchange->device, "exchange -DREMOTE=1", "probe_read",
                        ((moert_grid){1, 1, 1}), MOERT_ARG(control->addresses), MOERT_ARG(wrong),
                        MOERT_ARG(ranks), MOERT_ARG(round)));
    MOERT_TRY(moert_buffer_read(wrong, 0, &count, sizeof count));
    if (count > 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "kernels see %u of %u rows in the shared memory of other ranks wrongly",
                          (unsigned)count, ranks * ranks);
    return MOERT_OK;
}

/*
 * Every rank writes into every segment and reads all of them, twice, so that a device that keeps a
 * copy shows. A rank that fails still meets the others, which then all fail.
 */
static moert_status probe(moert_exchange *exchange) {
    unsigned ranks = (unsigned)moert_comm_size(exchange->comm);
    const moert_control *control = exchange->state;
    moert_buffer *wrong = NULL;
    moert_status status = moert_buffer_create(exchange->device, sizeof(uint32_t), &wrong);
    for (unsigned round = 0; round < PROBE_ROUNDS; round++) {
        if (status == MOERT_OK)
            status = probe_write(exchange, ranks, round);
        moert_status synced = moert_shared_sync(control->shared);
        if (status == MOERT_OK)
            status = synced;
        if (status == MOERT_OK)
            status = probe_read(exchange, wrong, ranks, round);
        synced = moert_shared_sync(control->shared); /* nobody writes the next round before */
        if (status == MOERT_OK)
            status = synced;
    }
    moert_buffer_destroy(wrong);
    return status;
}

static void close_window(moert_exchange *exchange) {
    moert_control *control = exchange->state;
    moert_buffer_destroy(control->addresses);
    moert_shared_destroy(control->shared);
    free(control);
    exchange->state = NULL;
}

/* What excludes the engine before anything is made. */
static void look(const moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]) {
    const moert_device_info *info = moert_device_describe(exchange->device);
    if (moert_comm_node_count(exchange->comm) != 1)
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES, "the ranks are on %zu hosts",
                 moert_comm_node_count(exchange->comm));
    else if (!info->is_cpu)
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES,
                 "rank %zu uses %.96s, whose kernels do not reach the memory of other processes",
                 moert_comm_rank(exchange->comm), info->name);
}

/* Each step is agreed on before the next collective one. */
static void open_window(moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]) {
    moert_control *control = NULL;
    look(exchange, reason);
    if (reason[0] == '\0' && MOERT_NEW(&control) != MOERT_OK)
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES, "%s", moert_last_error());
    moert_exchange_share_reason(exchange->comm, reason);
    if (reason[0] != '\0') {
        free(control);
        return;
    }
    exchange->state = control;
    size_t bytes = (moert_comm_size(exchange->comm) + 2) * LINE_BYTES;
    moert_status status = moert_shared_create(exchange->comm, bytes, &control->shared);
    if (status == MOERT_OK)
        status = make_addresses(exchange, control->shared, &control->addresses);
    if (status != MOERT_OK)
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES, "%s", moert_last_error());
    moert_exchange_share_reason(exchange->comm, reason);
    if (reason[0] == '\0') {
        if (probe(exchange) != MOERT_OK)
            snprintf(reason, MOERT_EXCHANGE_REASON_BYTES, "%s", moert_last_error());
        moert_exchange_share_reason(exchange->comm, reason);
    }
    if (reason[0] != '\0')
        close_window(exchange);
}

/* ---- moves ---- */

static moert_status dispatch_window(moert_exchange *exchange, const moert_move *move,
                                    moert_status status) {
    if (status == MOERT_OK)
        status = moert_kernel_dispatch(exchange, move, true);
    moert_status finished = moert_device_finish(exchange->device);
    return meet(exchange, status != MOERT_OK ? status : finished);
}

static moert_status combine_window(moert_exchange *exchange, const moert_move *move,
                                   moert_status status) {
    moert_status finished = moert_device_finish(exchange->device);
    MOERT_TRY(meet(exchange, status != MOERT_OK ? status : finished));
    MOERT_TRY(moert_kernel_combine_rows(exchange, move, true, move->window->storage.addresses,
                                        move->plan->destination));
    return move->slots != NULL ? moert_kernel_combine_slots(exchange, move, true) : MOERT_OK;
}

const moert_engine moert_engine_window = {
    .name = "window",
    .reserves_worst_case = true,
    .open = open_window,
    .close = close_window,
    .allocate = allocate_window,
    .dispatch = dispatch_window,
    .combine = combine_window,
};
