/* Creates windows, and manages their memory and its growth. */
#include <stdint.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "device/buffer.h"
#include "exchange/internal.h"

enum { BF16_PER_FLOAT = sizeof(float) / sizeof(uint16_t) };

moert_status moert_window_create(moert_exchange *exchange, size_t width, moert_window **window) {
    moert_window *made;
    MOERT_TRY(MOERT_NEW(&made));
    *made = (moert_window){.exchange = exchange,
                           .width = width,
                           .columns = width,
                           .stride = moert_window_stride_of(width)};
    exchange->widest = moert_max(exchange->widest, made->stride);
    *window = made;
    return MOERT_OK;
}

moert_status moert_memory_look(const moert_exchange_memory *memory, const moert_device *device,
                               moert_comm *comm) {
    const bool cpu = moert_device_describe(device)->is_cpu;
    bool all_cpus;
    MOERT_TRY(moert_exchange_everyone(comm, cpu, &all_cpus));
    if (moert_comm_node_count(comm) != 1)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "the ranks are on %zu hosts; windows need one host",
                          moert_comm_node_count(comm));
    if (cpu != all_cpus)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "rank %zu uses a CPU device, but other ranks do not",
                          moert_comm_rank(comm));
    return memory->look != NULL ? memory->look(device, comm) : MOERT_OK;
}

moert_status moert_storage_point(moert_device *device, const uint64_t *table, size_t ranks,
                                 moert_storage *storage) {
    MOERT_TRY(moert_buffer_create(device, ranks * sizeof *table, &storage->addresses));
    return moert_buffer_write(storage->addresses, 0, table, ranks * sizeof *table);
}

moert_status moert_window_create_bf16(moert_exchange *exchange, size_t columns,
                                      moert_window **window) {
    if (columns % BF16_PER_FLOAT != 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "a bf16 window needs an even number of columns, not %zu", columns);
    MOERT_TRY(moert_window_create(exchange, columns / BF16_PER_FLOAT, window));
    (*window)->columns = columns;
    return MOERT_OK;
}

void moert_storage_release(moert_storage *storage) {
    if (storage->staging != NULL)
        moert_staging_destroy(storage->staging);
    else
        moert_buffer_destroy(storage->rows);
    moert_buffer_destroy(storage->addresses);
    if (storage->segments != NULL)
        storage->release(storage->segments);
    *storage = (moert_storage){.rows = NULL};
}

/* Counts the memory of a window's `rows` rows, if the engine, not the device, has allocated it. If
 * untouched rows use no memory, a window can get more rows within the same memory; then only the
 * additional rows are counted. */
static void count(moert_window *window, size_t rows) {
    const size_t bytes = window->storage.segments != NULL ? rows * moert_row_bytes(window) : 0;
    const size_t had = window->counted_bytes,
                 stays = window->exchange->reserves_worst_case ? moert_min(had, bytes) : 0;
    moert_device_count(window->exchange->device, bytes - stays, had - stays);
    window->counted_bytes = bytes;
}

void moert_window_destroy(moert_window *window) {
    if (window == NULL)
        return;
    moert_device_finish(window->exchange->device);
    moert_storage_release(&window->storage);
    count(window, 0);
    free(window);
}

size_t moert_window_stride(const moert_window *window) {
    return window->stride;
}

moert_buffer *moert_window_rows(const moert_window *window) {
    return window->storage.rows;
}

/* Waits until no rank uses the rows any more, and releases them. */
static moert_status release(moert_window *window) {
    moert_exchange *exchange = window->exchange;
    MOERT_TRY(moert_comm_agree(exchange->comm, moert_device_finish(exchange->device)));
    moert_storage_release(&window->storage);
    count(window, 0);
    window->capacity_rows = 0;
    return MOERT_OK;
}

/* Allocates storage for `rows` rows on all ranks or on none. *everywhere = whether all ranks
 * succeeded. */
static moert_status try_allocate(moert_window *window, size_t rows, moert_storage *storage,
                                 bool *everywhere) {
    moert_exchange *exchange = window->exchange;
    *storage = (moert_storage){.rows = NULL};
    *everywhere = false;
    moert_status local = exchange->engine->allocate(window, rows, storage);
    if (local != MOERT_OK)
        local = moert_error_record(local, __func__, __LINE__,
                                   "a window for %zu rows of %zu bytes (less even routing needs "
                                   "more; see --recompute and --micro-batches): %s",
                                   rows, moert_row_bytes(window), moert_last_error());
    const moert_status status =
        moert_exchange_everyone(exchange->comm, local == MOERT_OK, everywhere);
    if (status != MOERT_OK || !*everywhere)
        moert_storage_release(storage);
    return moert_first(status, local);
}

/* Grows a window to at least `needed` rows. If there is no memory for the rows that any plan can
 * need, tries the rows that this plan needs. */
static moert_status grow(moert_window *window, size_t needed) {
    moert_exchange *exchange = window->exchange;
    if (window->capacity_rows >= needed)
        return MOERT_OK;
    size_t limit = exchange->largest_bytes / moert_row_bytes(window);
    if (needed > limit)
        return moert_comm_agree(
            exchange->comm,
            MOERT_FAIL(ERROR_MEMORY,
                       "a window of width %zu needs %zu rows; the largest allocation of the ranks' "
                       "devices, %zu bytes, has room for %zu rows",
                       window->width, needed, exchange->largest_bytes, limit));
    const size_t modest = moert_window_room(needed, 0, limit, false);
    size_t rows =
        moert_window_room(needed, exchange->capacity_rows, limit, exchange->reserves_worst_case);
    moert_storage storage;
    bool everywhere;
    if (window->capacity_rows > 0)
        MOERT_TRY(release(window));
    moert_status status = try_allocate(window, rows, &storage, &everywhere);
    if (!everywhere && rows > modest) {
        rows = modest;
        status = try_allocate(window, rows, &storage, &everywhere);
    }
    if (!everywhere)
        return moert_comm_agree(exchange->comm, status);
    window->storage = storage;
    window->capacity_rows = rows;
    MOERT_DEBUG("window of width %zu has room for %zu rows", window->width, rows);
    return MOERT_OK;
}

/* Reserves `needed` rows on all ranks, of which this rank uses `rows`. */
static moert_status reserve(moert_window *window, size_t needed, size_t rows) {
    MOERT_TRY(grow(window, needed));
    const size_t used = window->exchange->reserves_worst_case ? rows : window->capacity_rows;
    if (used * moert_row_bytes(window) > window->counted_bytes)
        count(window, used);
    return MOERT_OK;
}

moert_status moert_window_reserve(moert_window *window, const moert_plan *plan) {
    return reserve(window, moert_max(plan->largest_rows, 1), plan->rows);
}

moert_status moert_window_reserve_slots(moert_window *window, const moert_exchange_plan *plan) {
    const size_t most = moert_max(plan->plan->largest_rows, plan->largest_slots);
    return reserve(window, moert_max(most, 1), most);
}
