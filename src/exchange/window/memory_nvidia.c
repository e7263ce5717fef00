/*
 * Segments on the NVIDIA GPUs of one host. Every rank allocates a segment, in one or more pieces,
 * and imports all segments into its OpenCL context from open files (device/nvidia/import.h).
 * Kernels access the segments over NVLink or PCIe.
 */
#include <stdlib.h>

#include "base/files.h"
#include "base/memory.h"
#include "device/buffer.h"
#include "device/device.h"
#include "device/nvidia/import.h"
#include "exchange/internal.h"

/* Memory that a rank owns besides the buffer of its rows. */
typedef struct segments {
    moert_export *own; /* this rank's pieces */
    size_t ranks;
    moert_buffer *others[]; /* [ranks] imported segments; NULL for this rank */
} segments;

static moert_status look(const moert_device *device, moert_comm *comm) {
    const moert_device_info *info = moert_device_describe(device);
    if (info->nvidia == 0)
        return MOERT_FAIL(
            ERROR_UNSUPPORTED,
            "rank %zu uses %.96s, whose kernels do not reach the memory of other processes",
            moert_comm_rank(comm), info->name);
    if (moert_export_ready(device) != MOERT_OK)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "rank %zu: %s", moert_comm_rank(comm),
                          moert_last_error());
    return MOERT_OK;
}

static void release(void *memory) {
    segments *s = memory;
    for (size_t r = 0; r < s->ranks; r++)
        moert_buffer_destroy(s->others[r]);
    moert_export_destroy(s->own);
    free(s);
}

/* Checks that this rank's GPU can access the GPUs of all other ranks. */
static moert_status check_peers(moert_device *device, moert_comm *comm) {
    enum { BYTES = sizeof((moert_device_info *)0)->pci };
    const size_t ranks = moert_comm_size(comm);
    char(*addresses)[BYTES] = NULL;
    moert_status status;
    MOERT_TRY_OR(done, moert_comm_agree(comm, moert_alloc(&addresses, ranks, BYTES)));
    MOERT_TRY_OR(done,
                 moert_comm_allgather(comm, moert_device_describe(device)->pci, BYTES, addresses));
    for (size_t r = 0; r < ranks && status == MOERT_OK; r++)
        status = moert_export_reaches(device, addresses[r]);
done:
    free(addresses);
    return moert_comm_agree(comm, status);
}

/* Imports the segments of all ranks from files[ranks][count], and makes the table of addresses. */
static moert_status import_segments(moert_device *device, moert_comm *comm, int *files,
                                    size_t count, size_t piece_bytes, moert_storage *storage) {
    segments *s = storage->segments;
    uint64_t *table;
    moert_status status = MOERT_OK;
    MOERT_TRY(moert_alloc(&table, s->ranks, sizeof *table));
    for (size_t r = 0; r < s->ranks && status == MOERT_OK; r++) {
        moert_buffer **segment = r == moert_comm_rank(comm) ? &storage->rows : &s->others[r];
        status = moert_buffer_import(device, files + r * count, count, piece_bytes, segment);
        if (status == MOERT_OK)
            status = moert_buffer_address(*segment, &table[r]);
    }
    if (status == MOERT_OK)
        status = moert_storage_point(device, table, s->ranks, storage);
    free(table);
    return status;
}

/* Allocates this rank's segment and exchanges its files with the other ranks. All ranks return the
 * same failure. */
static moert_status create_in_pieces(moert_device *device, moert_comm *comm, size_t count,
                                     size_t piece_bytes, moert_storage *storage) {
    const size_t ranks = moert_comm_size(comm);
    segments *s = NULL;
    int *mine = NULL, *all = NULL;
    moert_status status = moert_alloc(&s, 1, sizeof *s + ranks * sizeof *s->others);
    if (status == MOERT_OK) {
        s->ranks = ranks;
        storage->segments = s;
        storage->release = release;
        status = moert_alloc(&all, (ranks + 1) * count, sizeof *all);
        mine = all + ranks * count;
    }
    if (status == MOERT_OK)
        status = moert_export_create(device, count, piece_bytes, mine, &s->own);
    moert_status made = status;
    status = moert_comm_agree(comm, made);
    if (status == MOERT_OK)
        status = moert_comm_share_files(comm, mine, count, all);
    if (made == MOERT_OK)
        moert_close_files(mine, count);
    MOERT_TRY_OR(done, status);
    status = import_segments(device, comm, all, count, piece_bytes, storage);
    moert_close_files(all, ranks * count);
    status = moert_comm_agree(comm, status);
done:
    free(all);
    return status;
}

static moert_status create(moert_device *device, moert_comm *comm, size_t bytes,
                           moert_storage *storage) {
    size_t count, piece_bytes;
    MOERT_TRY(check_peers(device, comm));
    MOERT_TRY(moert_comm_agree(comm, moert_export_cut(device, bytes, &count, &piece_bytes)));
    return create_in_pieces(device, comm, count, piece_bytes, storage);
}

const moert_exchange_memory moert_memory_nvidia = {
    .name = "memory of NVIDIA GPUs",
    .reserves_worst_case = false,
    .look = look,
    .create = create,
};
