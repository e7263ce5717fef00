/*
 * Memory shared by the ranks of one host: one MPI-3 shared window, locked for its whole life.
 *
 * Open MPI's window starts at an odd place within a page (264 bytes into it), where aligned vector
 * stores of a kernel would fault. So every rank asks for a page more than it needs, and the
 * segments are counted from the first page boundary.
 */
#include "comm/internal.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/statvfs.h>

#include "base/memory.h"

enum { PAGE_BYTES = 4096, SPARE_BYTES = 16 << 20 };

struct moert_shared {
    moert_comm *comm;
    MPI_Win window;
    char *base;    /* page-aligned start of rank 0's segment */
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

/* The folder in which Open MPI keeps shared windows: its own setting, read through MPI_T. */
static void backing_folder(char *folder, int bytes) {
    snprintf(folder, (size_t)bytes, "/dev/shm");
    int provided, index, count = 0;
    if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS)
        return;
    MPI_T_cvar_handle handle;
    if (MPI_T_cvar_get_index("osc_sm_backing_directory", &index) == MPI_SUCCESS &&
        MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) == MPI_SUCCESS) {
        char *text = count > 0 ? calloc((size_t)count + 1, 1) : NULL;
        if (text != NULL && MPI_T_cvar_read(handle, text) == MPI_SUCCESS && text[0] == '/')
            snprintf(folder, (size_t)bytes, "%s", text);
        free(text);
        MPI_T_cvar_handle_free(&handle);
    }
    MPI_T_finalize();
}

/*
 * Open MPI finds a lack of space on rank 0 alone, and leaves the other ranks waiting. It asks for 5
 * % more than the window holds.
 */
static moert_status check_space(const moert_comm *comm, size_t bytes) {
    char folder[256];
    struct statvfs space;
    if (comm->rank != 0)
        return MOERT_OK;
    backing_folder(folder, sizeof folder);
    size_t total = comm->size * bytes, needed = total + total / 16 + SPARE_BYTES;
    if (statvfs(folder, &space) != 0 || space.f_bavail * (size_t)space.f_frsize >= needed)
        return MOERT_OK;
    return MOERT_FAIL(ERROR_MEMORY,
                      "%zu shared segments need %zu MiB in %s, where %zu MiB are free; the MCA "
                      "parameter osc_sm_backing_directory names another folder",
                      comm->size, needed >> 20, folder,
                      (space.f_bavail * (size_t)space.f_frsize) >> 20);
}

static moert_status allocate(moert_shared *shared) {
    moert_comm *comm = shared->comm;
    size_t bytes = shared->stride + PAGE_BYTES;
    void *mine;
    MOERT_TRY(moert_comm_agree(comm, check_space(comm, bytes)));
    moert_phase_wait_begin();
    int code = MPI_Win_allocate_shared((MPI_Aint)bytes, 1, MPI_INFO_NULL, comm->handle, &mine,
                                       &shared->window);
    moert_phase_wait_end();
    if (code == MPI_SUCCESS)
        return MOERT_OK;
    shared->window = MPI_WIN_NULL;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    return MOERT_FAIL(ERROR_UNSUPPORTED,
                      "this MPI gives no shared memory (is its component osc/sm off?): %s", text);
}

/* Finds the page boundary, which lies equally far from rank 0's base in every process. */
static moert_status align(moert_shared *shared) {
    moert_comm *comm = shared->comm;
    MPI_Aint bytes;
    int unit;
    void *first;
    MOERT_MPI(comm, MPI_Win_shared_query(shared->window, 0, &bytes, &unit, &first));
    uint64_t skip = -(uintptr_t)first % PAGE_BYTES;
    MOERT_TRY(moert_comm_broadcast(comm, 0, &skip, sizeof skip));
    shared->base = (char *)first + skip;
    moert_status status = MOERT_OK;
    if ((uintptr_t)shared->base % PAGE_BYTES != 0)
        status = MOERT_FAIL(ERROR_UNSUPPORTED, "the shared window starts at %p, unlike on rank 0",
                            first);
    return moert_comm_agree(comm, status);
}

moert_status moert_shared_create(moert_comm *comm, size_t bytes, moert_shared **out) {
    if (comm->node_count > 1)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%zu ranks on %zu hosts cannot share memory",
                          comm->size, comm->node_count);
    moert_shared *shared = NULL;
    moert_status status = MOERT_NEW(&shared);
    MOERT_TRY_OR(undo_new, moert_comm_agree(comm, status));
    shared->comm = comm;
    shared->window = MPI_WIN_NULL;
    MOERT_TRY_OR(undo_new, agree_stride(comm, bytes, &shared->stride));
    MOERT_TRY_OR(undo_new, moert_comm_agree(comm, allocate(shared)));
    MPI_Win_set_errhandler(shared->window, MPI_ERRORS_RETURN);
    MPI_Win_lock_all(MPI_MODE_NOCHECK, shared->window);
    MOERT_TRY_OR(undo_window, align(shared));
    *out = shared;
    return MOERT_OK;
undo_window:
    moert_shared_destroy(shared);
    return status;
undo_new:
    free(shared);
    return status;
}

void *moert_shared_segment(const moert_shared *shared, size_t rank) {
    return shared->base + rank * shared->stride;
}

moert_status moert_shared_sync(moert_shared *shared) {
    MOERT_MPI(shared->comm, MPI_Win_sync(shared->window));
    MOERT_TRY(moert_comm_barrier(shared->comm));
    MOERT_MPI(shared->comm, MPI_Win_sync(shared->window));
    return MOERT_OK;
}

void moert_shared_destroy(moert_shared *shared) {
    if (shared == NULL)
        return;
    moert_phase_wait_begin();
    MPI_Win_unlock_all(shared->window);
    MPI_Win_free(&shared->window);
    moert_phase_wait_end();
    free(shared);
}
