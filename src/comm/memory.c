/*
 * Memory that several processes of one host map. The first process creates an anonymous file, and
 * the other processes open the file through /proc. The file has no name in any directory. So no
 * limit of /dev/shm applies, and nothing is left behind, however a process ends. Untouched pages
 * use no memory.
 *
 * In another container, the first process's pid and file number may name no file or another file.
 * So each process verifies the file it opens. The second part of this source file divides the
 * shared memory into segments, one per rank.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "comm/internal.h"

const char *moert_memory_processes = "/proc";

/* The message that the first process broadcasts to the other processes. */
typedef struct ticket {
    int pid, file; /* file -1: the first process has failed */
    uint64_t device, inode;
    uint64_t tag; /* the memory ends with this tag, by which the other processes verify the file */
} ticket;

/* Bytes of the memory and the tag after it. */
static size_t whole_bytes(size_t bytes) {
    return moert_round_up(bytes, sizeof(uint64_t)) + sizeof(uint64_t);
}

static uint64_t *tag_of(void *memory, size_t bytes) {
    return (uint64_t *)(void *)((char *)memory + whole_bytes(bytes)) - 1;
}

static moert_status map(int file, size_t bytes, void **memory) {
    void *made = mmap(NULL, whole_bytes(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (made == MAP_FAILED)
        return MOERT_FAIL(ERROR_MEMORY, "cannot map %zu bytes of shared memory: %s", bytes,
                          strerror(errno));
    *memory = made;
    return MOERT_OK;
}

static moert_status make(size_t bytes, ticket *mine, void **memory) {
    struct rlimit limit;
    struct stat info;
    const size_t whole = whole_bytes(bytes);
    /* if the file exceeded RLIMIT_FSIZE, the system would kill the process (SIGXFSZ) */
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < whole)
        return MOERT_FAIL(ERROR_MEMORY, "%zu bytes of shared memory exceed `ulimit -f`, %zu bytes",
                          bytes, (size_t)limit.rlim_cur);
    mine->file = memfd_create("moert", MFD_CLOEXEC);
    if (mine->file < 0 || ftruncate(mine->file, (off_t)whole) != 0 || fstat(mine->file, &info) != 0)
        return MOERT_FAIL(ERROR_MEMORY, "cannot make %zu bytes of shared memory: %s", bytes,
                          strerror(errno));
    MOERT_TRY(map(mine->file, bytes, memory));
    mine->pid = (int)getpid();
    mine->device = info.st_dev;
    mine->inode = info.st_ino;
    mine->tag = moert_clock_ns() ^ (uint64_t)mine->pid << 40;
    *tag_of(*memory, bytes) = mine->tag;
    return MOERT_OK;
}

static moert_status unreachable(const ticket *first, const char *why) {
    return MOERT_FAIL(ERROR_UNSUPPORTED,
                      "the memory of process %d is out of reach: %s (other container or user?)",
                      first->pid, why);
}

/* Checks the file before opening it, since opening an unrelated file could block, as a FIFO
 * does. */
static moert_status open_first(const ticket *first, size_t bytes, void **memory) {
    char path[256];
    struct stat info;
    if (first->file < 0)
        return MOERT_FAIL(ERROR_MEMORY,
                          "the first process of the host could not make the shared memory");
    snprintf(path, sizeof path, "%s/%d/fd/%d", moert_memory_processes, first->pid, first->file);
    if (stat(path, &info) != 0)
        return unreachable(first, strerror(errno));
    if (info.st_dev != first->device || info.st_ino != first->inode)
        return unreachable(first, "another file is in its place");
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return unreachable(first, strerror(errno));
    moert_status status = map(file, bytes, memory);
    close(file);
    if (status == MOERT_OK && *tag_of(*memory, bytes) != first->tag) {
        moert_memory_unmap(*memory, bytes);
        *memory = NULL;
        status = unreachable(first, "it holds something else");
    }
    return status;
}

static moert_status broadcast(MPI_Comm handle, ticket *first) {
    MOERT_MPI_COLLECT(NULL, MPI_Ibcast(first, sizeof *first, MPI_BYTE, 0, handle, &request));
    return MOERT_OK;
}

static moert_status synchronize(MPI_Comm handle) {
    MOERT_MPI_COLLECT(NULL, MPI_Ibarrier(handle, &request));
    return MOERT_OK;
}

moert_status moert_memory_map(const moert_comm *comm, MPI_Comm handle, size_t bytes,
                              void **memory) {
    ticket first = {.file = -1};
    int rank;
    *memory = NULL;
    MOERT_TRY(moert_comm_check());
    MOERT_MPI(comm, MPI_Comm_rank(handle, &rank));
    moert_status status = rank == 0 ? make(bytes, &first, memory) : MOERT_OK;
    int own = first.file;
    if (status != MOERT_OK)
        first.file = -1;
    moert_status shared = broadcast(handle, &first);
    if (shared == MOERT_OK && rank != 0)
        status = open_first(&first, bytes, memory);
    if (shared == MOERT_OK)
        shared = synchronize(handle); /* rank 0's file stays open until all ranks have opened it */
    if (own >= 0)
        close(own);
    if (shared == MOERT_OK)
        return status;
    moert_memory_unmap(*memory, bytes);
    *memory = NULL;
    return shared;
}

void moert_memory_unmap(void *memory, size_t bytes) {
    if (memory != NULL)
        munmap(memory, whole_bytes(bytes));
}

/* ---- segments, one per rank ---- */

enum { PAGE_BYTES = 4096 };

struct moert_shared {
    moert_comm *comm;
    void *base;    /* rank 0's segment */
    size_t stride; /* bytes from the start of one rank's segment to the next */
};

/* The largest request of all ranks, as a whole number of pages. */
static moert_status agree_stride(moert_comm *comm, size_t bytes, size_t *stride) {
    uint64_t mine = bytes, largest;
    MOERT_MPI_COLLECT(
        comm, MPI_Iallreduce(&mine, &largest, 1, MPI_UINT64_T, MPI_MAX, comm->handle, &request));
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
    if (status == MOERT_OK)
        shared->comm = comm; /* sets `comm` before the ranks agree: if another rank has failed,
                                this rank destroys `shared`, which needs `comm` */
    MOERT_TRY_OR(undo, moert_comm_agree(comm, status));
    MOERT_TRY_OR(undo, agree_stride(comm, bytes, &shared->stride));
    /* the tag's page follows the last segment, so kernels that read whole vectors may read past the
     * end of that segment */
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
