/* The segments of all ranks of a host, in one piece of memory that each of them maps. */
#include "comm/internal.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/memory.h"

enum { PAGE_BYTES = 4096 };

struct moert_shared {
    moert_comm *comm;
    void *base;    /* rank 0's segment */
    size_t stride; /* from one rank's segment to the next */
};

/* The largest request of all ranks, as a whole number of pages. */
static moert_status agree_stride(moert_comm *comm, size_t bytes, size_t *stride) {
    uint64_t mine = bytes, largest;
    MOERT_MPI_WAIT(comm, MPI_Allreduce(&mine, &largest, 1, MPI_UINT64_T, MPI_MAX, comm->handle));
    if (largest > PTRDIFF_MAX / comm->size - 2 * PAGE_BYTES)
        return MOERT_FAIL(ERROR_MEMORY, "%zu shared segments of %zu bytes exceed the address space",
                          comm->size, (size_t)largest);
    *stride = moert_round_up(moert_max((size_t)largest, 1), PAGE_BYTES);
    return MOERT_OK;
}

moert_status moert_shared_create(moert_comm *comm, size_t bytes, moert_shared **out) {
    if (comm->node_count > 1)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%zu ranks on %zu hosts cannot share memory",
                          comm->size, comm->node_count);
    moert_shared *shared = NULL;
    moert_status status = MOERT_NEW(&shared);
    MOERT_TRY_OR(undo, moert_comm_agree(comm, status));
    shared->comm = comm;
    MOERT_TRY_OR(undo, agree_stride(comm, bytes, &shared->stride));
    /* behind whole pages comes the tag's: kernels may read whole vectors at the end */
    status = moert_memory_map(comm, comm->handle, comm->size * shared->stride, &shared->base);
    MOERT_TRY_OR(undo, moert_comm_agree(comm, status));
    *out = shared;
    return MOERT_OK;
undo:
    moert_shared_destroy(shared);
    return status;
}

void *moert_shared_segment(const moert_shared *shared, size_t rank) {
    return (char *)shared->base + rank * shared->stride;
}

moert_status moert_shared_sync(moert_shared *shared) {
    atomic_thread_fence(memory_order_seq_cst);
    MOERT_TRY(moert_comm_barrier(shared->comm));
    atomic_thread_fence(memory_order_seq_cst);
    return MOERT_OK;
}

void moert_shared_destroy(moert_shared *shared) {
    if (shared == NULL)
        return;
    moert_memory_unmap(shared->base, shared->comm->size * shared->stride);
    free(shared);
}
