/* The engine for one rank: the window is a plain buffer, and nothing waits for other ranks. */
#include <stdio.h>

#include "exchange/internal.h"

static void open_local(moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]) {
    if (moert_comm_size(exchange->comm) != 1)
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES, "it serves one rank, not %zu",
                 moert_comm_size(exchange->comm));
}

static void close_local(moert_exchange *exchange) {
    (void)exchange;
}

static moert_status allocate_local(const moert_window *window, size_t rows,
                                   moert_storage *storage) {
    return moert_buffer_create(window->exchange->device, rows * window->stride * sizeof(float),
                               &storage->rows);
}

static moert_status dispatch_local(moert_exchange *exchange, const moert_transfer *t,
                                   moert_status status) {
    MOERT_TRY(status);
    return moert_kernel_dispatch(exchange, t, false);
}

static moert_status combine_local(moert_exchange *exchange, const moert_transfer *t,
                                  moert_status status) {
    MOERT_TRY(status);
    MOERT_TRY(moert_kernel_combine_rows(exchange, t, false));
    return moert_kernel_combine_slots(exchange, t, false);
}

const moert_engine moert_engine_local = {
    .name = "local",
    .open = open_local,
    .close = close_local,
    .allocate = allocate_local,
    .dispatch = dispatch_local,
    .combine = combine_local,
};
