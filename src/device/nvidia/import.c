/*
 * Memory of NVIDIA GPUs that the devices of other processes reach. A process allocates the memory
 * with CUDA's calls and passes it on as open files. All processes, including the allocating one,
 * import the files into OpenCL (cl_khr_external_memory_opaque_fd).
 *
 * Each file holds one piece of the memory. Measured on an H200: a piece of 512 MiB or more crashes
 * the process inside the driver. The driver places each imported piece right below the previous
 * piece, if all pieces have the same size, a multiple of 32 MiB. So moert imports from the last
 * piece to the first, and kernels see one range. moert checks the addresses. If the driver has
 * placed some pieces into older gaps instead, moert imports all pieces again before it releases the
 * first set.
 */
#include "device/nvidia/import.h"

#include <fcntl.h>
#include <stdlib.h>

#include "base/files.h"
#include "base/memory.h"
#include "device/buffer.h"
#include "device/internal.h"
#include "device/nvidia/cuda.h"

/* The most attempts to import: enough that the pieces of failed attempts fill all older gaps. An
 * attempt takes milliseconds, but no memory. */
enum { ATTEMPTS = 64 };
static const size_t MOST_PIECE_BYTES = (size_t)256 << 20, PIECE_UNIT_BYTES = (size_t)32 << 20;

#ifndef CL_EXTERNAL_MEMORY_HANDLE_OPAQUE_FD_KHR
#define CL_EXTERNAL_MEMORY_HANDLE_OPAQUE_FD_KHR 0x2060
#endif

struct moert_export {
    const moert_cuda *cuda;
    size_t count;
    uint64_t handles[]; /* [count] */
};

static moert_cuda_memory memory_of(const moert_cuda *cuda) {
    return (moert_cuda_memory){.kind = MOERT_CUDA_PINNED,
                               .shared_as = MOERT_CUDA_FILE,
                               .place = MOERT_CUDA_ON_DEVICE,
                               .device = cuda->device};
}

static moert_status open_cuda(const moert_device *device, const moert_cuda **cuda) {
    if (!device->info.imports_files)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s has no cl_khr_external_memory_opaque_fd",
                          device->info.name);
    MOERT_TRY(moert_cuda_open(device, cuda));
    const moert_cuda *c = *cuda;
    if (c->granularity == NULL || c->create == NULL || c->export_as == NULL || c->release == NULL ||
        c->reaches == NULL)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "libcuda.so.1 is older than CUDA 10.2");
    return MOERT_OK;
}

moert_status moert_export_ready(const moert_device *device) {
    const moert_cuda *cuda;
    return open_cuda(device, &cuda);
}

moert_status moert_export_reaches(const moert_device *device, const char *pci) {
    const moert_cuda *cuda;
    int peer, can = 0;
    MOERT_TRY(open_cuda(device, &cuda));
    if (cuda->find(&peer, pci) != 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "the process that uses the GPU at PCI address %s cannot see the GPU at "
                          "%s (CUDA_VISIBLE_DEVICES?)",
                          device->info.pci, pci);
    if (peer == cuda->device)
        return MOERT_OK;
    MOERT_CUDA(cuda, reaches, (&can, cuda->device, peer));
    if (!can)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "the GPU at PCI address %s has no peer access to the GPU at %s",
                          device->info.pci, pci);
    return MOERT_OK;
}

moert_status moert_export_cut(const moert_device *device, size_t bytes, size_t *count,
                              size_t *piece_bytes) {
    const moert_cuda *cuda;
    size_t unit;
    MOERT_TRY(open_cuda(device, &cuda));
    const moert_cuda_memory memory = memory_of(cuda);
    MOERT_CUDA(cuda, granularity, (&unit, &memory, 0));
    *count = moert_ceil_div(bytes + MOERT_BUFFER_TAIL_BYTES, MOST_PIECE_BYTES);
    *piece_bytes = moert_round_up(moert_ceil_div(bytes + MOERT_BUFFER_TAIL_BYTES, *count),
                                  *count > 1 ? moert_max(unit, PIECE_UNIT_BYTES) : unit);
    return MOERT_OK;
}

static moert_status export_piece(moert_export *made, size_t piece_bytes, int *file) {
    const moert_cuda_memory memory = memory_of(made->cuda);
    MOERT_CUDA(made->cuda, create, (&made->handles[made->count], piece_bytes, &memory, 0));
    const uint64_t handle = made->handles[made->count++];
    MOERT_CUDA(made->cuda, export_as, (file, handle, MOERT_CUDA_FILE, 0));
    return MOERT_OK;
}

moert_status moert_export_create(moert_device *device, size_t count, size_t piece_bytes, int *files,
                                 moert_export **export) {
    const moert_cuda *cuda;
    moert_export *made;
    moert_status status;
    for (size_t i = 0; i < count; i++)
        files[i] = -1;
    MOERT_TRY(open_cuda(device, &cuda));
    MOERT_TRY(moert_alloc(&made, 1, sizeof *made + count * sizeof *made->handles));
    made->cuda = cuda;
    for (size_t i = 0; i < count; i++)
        MOERT_TRY_OR(undo, export_piece(made, piece_bytes, &files[i]));
    *export = made;
    return MOERT_OK;
undo:
    moert_close_files(files, count);
    moert_export_destroy(made);
    return status;
}

void moert_export_destroy(moert_export *export) {
    if (export == NULL)
        return;
    for (size_t i = 0; i < export->count; i++)
        export->cuda->release(export->handles[i]);
    free(export);
}

/* ---- import ---- */

static moert_status import_piece(moert_device *device, int *file, size_t bytes, cl_mem *piece) {
    const cl_mem_properties properties[] = {CL_EXTERNAL_MEMORY_HANDLE_OPAQUE_FD_KHR,
                                            (cl_mem_properties)*file, 0};
    cl_int code;
    *piece = clCreateBufferWithProperties(device->context, properties, CL_MEM_READ_WRITE, bytes,
                                          NULL, &code);
    if (code != CL_SUCCESS)
        return MOERT_CL_FAIL(device, code, "clCreateBufferWithProperties of imported memory");
    *file = -1; /* the driver owns the file now */
    return MOERT_OK;
}

/* Imports pieces as one buffer. The driver takes over the files of imported pieces. */
static moert_status import_pieces(moert_device *device, int *files, size_t count,
                                  size_t piece_bytes, moert_buffer **buffer) {
    moert_buffer *made;
    moert_status status;
    MOERT_TRY(MOERT_NEW(&made));
    *buffer = made;
    made->device = device;
    made->bytes = count * piece_bytes - MOERT_BUFFER_TAIL_BYTES;
    made->piece_bytes = piece_bytes;
    made->piece_count = count;
    status = MOERT_NEW_ARRAY(&made->pieces, count);
    for (size_t i = count; i-- > 0 && status == MOERT_OK;)
        status = import_piece(device, &files[i], piece_bytes, &made->pieces[i]);
    MOERT_TRY(status);
    made->memory = made->pieces[0];
    clRetainMemObject(made->memory);
    uint64_t first = 0, address;
    for (size_t i = 0; i < count; i++) { /* checks that addresses ascend without gaps */
        moert_buffer piece = {.device = device, .memory = made->pieces[i], .bytes = piece_bytes};
        MOERT_TRY(moert_buffer_address(&piece, &address));
        first = i == 0 ? address : first;
        if (address != first + i * piece_bytes)
            return MOERT_FAIL(ERROR_UNSUPPORTED,
                              "piece %zu of imported memory is at %#llx, not %zu bytes after "
                              "%#llx",
                              i, (unsigned long long)address, i * piece_bytes,
                              (unsigned long long)first);
    }
    made->address = first;
    return MOERT_OK;
}

/* Makes one attempt to import, with duplicates of the files, so that `files` stay open. */
static moert_status import_copies(moert_device *device, const int *files, size_t count,
                                  size_t piece_bytes, moert_buffer **buffer) {
    int *copies;
    MOERT_TRY(moert_alloc(&copies, count, sizeof *copies));
    moert_status status = MOERT_OK;
    for (size_t i = 0; i < count; i++) {
        copies[i] = fcntl(files[i], F_DUPFD_CLOEXEC, 0);
        if (copies[i] < 0 && status == MOERT_OK)
            status = MOERT_FAIL(ERROR_MEMORY, "no room for %zu more open files", count);
    }
    if (status == MOERT_OK)
        status = import_pieces(device, copies, count, piece_bytes, buffer);
    moert_close_files(copies, count);
    free(copies);
    return status;
}

moert_status moert_buffer_import(moert_device *device, const int *files, size_t count,
                                 size_t piece_bytes, moert_buffer **buffer) {
    moert_buffer *attempts[ATTEMPTS] = {NULL};
    size_t attempt = 0;
    moert_status status;
    do
        status = import_copies(device, files, count, piece_bytes, &attempts[attempt++]);
    while (status == MOERT_ERROR_UNSUPPORTED && attempt < ATTEMPTS);
    *buffer = status == MOERT_OK ? attempts[--attempt] : NULL;
    while (attempt > 0)
        moert_buffer_destroy(attempts[--attempt]);
    return status;
}
