/* Segments in memory that the processes of a host share, for CPU devices. */
#include <stdlib.h>

#include "base/memory.h"
#include "device/device.h"
#include "exchange/internal.h"

/* Fails if kernels cannot access memory by address: windows of other ranks are mapped into this
 * process, but are not OpenCL buffers of it. */
static moert_status look(const moert_device *device, moert_comm *comm) {
    (void)comm;
    if (moert_device_describe(device)->is_simulator)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "kernels on %s can access only its own buffers",
                          moert_device_name(device));
    return MOERT_OK;
}

static void release(void *segments) {
    moert_shared_destroy(segments);
}

static moert_status create(moert_device *device, moert_comm *comm, size_t bytes,
                           moert_storage *storage) {
    const size_t ranks = moert_comm_size(comm);
    moert_shared *shared;
    uint64_t *table;
    moert_status status;
    MOERT_TRY(moert_shared_create(comm, bytes, &shared));
    storage->segments = shared;
    storage->release = release;
    storage->host = moert_shared_segment(shared, moert_comm_rank(comm));
    MOERT_TRY(moert_buffer_wrap(device, storage->host, bytes, &storage->rows));
    MOERT_TRY(moert_alloc(&table, ranks, sizeof *table));
    for (size_t r = 0; r < ranks; r++)
        table[r] = (uintptr_t)moert_shared_segment(shared, r);
    status = moert_storage_point(device, table, ranks, storage);
    free(table);
    return status;
}

const moert_exchange_memory moert_memory_shared = {
    .name = "shared memory",
    .reserves_worst_case = true,
    .look = look,
    .create = create,
};
