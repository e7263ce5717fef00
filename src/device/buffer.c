/* Implements device memory: buffers, wrapped host memory and views. */
#include "device/buffer.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/log.h"
#include "base/memory.h"
#include "device/internal.h"
#include "device/launch.h"

enum { VIEW_ALIGNMENT_BYTES = 512, PAGE_BYTES = 4096, HUGE_PAGE_BYTES = 2 << 20 };

size_t moert_device_peak_bytes(const moert_device *device) {
    return device->peak_bytes;
}

void moert_device_set_peak(moert_device *device, size_t bytes) {
    device->peak_bytes = moert_max(bytes, device->counted_bytes);
}

void moert_device_count(moert_device *device, size_t more, size_t fewer) {
    const size_t now = atomic_fetch_add(&device->counted_bytes, more) + more;
    size_t peak = device->peak_bytes;
    while (now > peak && !atomic_compare_exchange_weak(&device->peak_bytes, &peak, now)) {
    }
    atomic_fetch_sub(&device->counted_bytes, fewer);
}

static moert_status adopt_memory(moert_device *device, cl_mem memory, size_t bytes,
                                 moert_buffer **buffer) {
    moert_status status = MOERT_NEW(buffer);
    if (status != MOERT_OK) {
        clReleaseMemObject(memory);
        return status;
    }
    **buffer = (moert_buffer){.device = device, .memory = memory, .bytes = bytes};
    return MOERT_OK;
}

/* Lets Linux back a large allocation of a CPU's driver by huge pages, whose addresses need fewer
 * entries of the TLB. The memory must not have been used. Maps the memory on a queue of its own,
 * which does not wait for enqueued work. */
static void use_huge_pages(const moert_device *device, cl_mem memory, size_t bytes) {
    cl_command_queue queue = clCreateCommandQueue(device->context, device->id, 0, NULL);
    char *host = queue == NULL ? NULL
                               : clEnqueueMapBuffer(queue, memory, CL_TRUE, CL_MAP_WRITE, 0, bytes,
                                                    0, NULL, NULL, NULL);
    const size_t before = -(uintptr_t)host % HUGE_PAGE_BYTES;
    if (host != NULL && bytes >= before + HUGE_PAGE_BYTES)
        madvise(host + before, (bytes - before) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES, MADV_HUGEPAGE);
    if (host != NULL)
        clEnqueueUnmapMemObject(queue, memory, host, 0, NULL, NULL);
    if (queue != NULL) {
        clFinish(queue);
        clReleaseCommandQueue(queue);
    }
}

static moert_status create(moert_device *device, cl_mem_flags flags, void *host, size_t bytes,
                           moert_buffer **buffer) {
    if (bytes > device->info.largest_bytes)
        return MOERT_FAIL(ERROR_MEMORY,
                          "a buffer of %zu bytes exceeds the largest allocation of %s, %zu bytes",
                          bytes, device->info.name, device->info.largest_bytes);
    cl_int code;
    const size_t tail = MOERT_BUFFER_TAIL_BYTES;
    size_t padded = host != NULL ? bytes : moert_round_up(bytes + tail, tail);
    cl_mem memory = clCreateBuffer(device->context, flags, padded, host, &code);
    if (code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_HOST_MEMORY ||
        code == CL_OUT_OF_RESOURCES)
        return MOERT_FAIL(ERROR_MEMORY, "%s has no room for a buffer of %zu bytes (%s)",
                          device->info.name, bytes, moert_cl_error_name(code));
    if (code != CL_SUCCESS)
        return MOERT_CL_FAIL(device, code, "clCreateBuffer");
    MOERT_TRY(adopt_memory(device, memory, bytes, buffer));
    if ((flags & CL_MEM_ALLOC_HOST_PTR) != 0 && padded >= 2 * HUGE_PAGE_BYTES)
        use_huge_pages(device, memory, padded);
    if (host == NULL) {
        (*buffer)->counted_bytes = padded;
        moert_device_count(device, padded, 0);
    }
    return MOERT_OK;
}

/* Adds the OpenCL memory of one piece of host memory. */
static moert_status add_piece(moert_buffer *buffer, char *memory, size_t bytes) {
    moert_device *device = buffer->device;
    moert_buffer *piece;
    uint64_t address = 0;
    MOERT_TRY(create(device, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, memory, bytes, &piece));
    moert_status status = moert_buffer_address(piece, &address);
    if (status == MOERT_OK && address != (uintptr_t)memory)
        status = MOERT_FAIL(ERROR_MEMORY,
                            "a buffer of %zu bytes exceeds the largest allocation of %s, %zu "
                            "bytes, and its driver does not use the host's memory in place",
                            buffer->bytes, device->info.name, device->info.piece_bytes);
    buffer->pieces[buffer->piece_count++] = piece->memory;
    free(piece);
    return status;
}

/* Wraps host memory as pieces, which kernels see as one range. */
static moert_status wrap_pieces(moert_device *device, char *memory, size_t bytes,
                                moert_buffer **buffer) {
    moert_buffer *made;
    moert_status status;
    MOERT_TRY(MOERT_NEW(&made));
    made->device = device;
    made->bytes = bytes;
    made->piece_bytes = device->info.piece_bytes / PAGE_BYTES * PAGE_BYTES;
    made->address = (uintptr_t)memory;
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->pieces, moert_ceil_div(bytes, made->piece_bytes)));
    for (size_t at = 0; at < bytes; at += made->piece_bytes)
        MOERT_TRY_OR(fail, add_piece(made, memory + at, moert_min(bytes - at, made->piece_bytes)));
    made->memory = made->pieces[0];
    clRetainMemObject(made->memory);
    *buffer = made;
    return MOERT_OK;
fail:
    moert_buffer_destroy(made);
    return status;
}

/* Makes a buffer of pieces of host memory, for sizes above the device's largest allocation. */
static moert_status create_pieces(moert_device *device, size_t bytes, moert_buffer **buffer) {
    const size_t padded = moert_round_up(bytes + MOERT_BUFFER_TAIL_BYTES, PAGE_BYTES);
    char *memory = aligned_alloc(PAGE_BYTES, padded);
    if (memory == NULL)
        return MOERT_FAIL(ERROR_MEMORY, "no room for a buffer of %zu bytes", bytes);
    const moert_status status = wrap_pieces(device, memory, padded, buffer);
    if (status != MOERT_OK) {
        free(memory);
        return status;
    }
    (*buffer)->bytes = bytes;
    (*buffer)->host = memory;
    (*buffer)->counted_bytes = padded;
    moert_device_count(device, padded, 0);
    return MOERT_OK;
}

static bool needs_pieces(const moert_device *device, size_t bytes) {
    return bytes > device->info.piece_bytes && bytes <= device->info.largest_bytes;
}

/* On a CPU, passes CL_MEM_ALLOC_HOST_PTR, so that PoCL allocates the memory during this call.
 * Without this flag, PoCL allocates at the first use, and ends the process if that allocation
 * fails. */
moert_status moert_buffer_create(moert_device *device, size_t bytes, moert_buffer **buffer) {
    MOERT_REQUIRE(device);
    MOERT_REQUIRE(buffer);
    if (needs_pieces(device, bytes))
        return create_pieces(device, bytes, buffer);
    const cl_mem_flags place = device->info.is_cpu ? CL_MEM_ALLOC_HOST_PTR : 0;
    return create(device, CL_MEM_READ_WRITE | place, NULL, bytes, buffer);
}

moert_status moert_buffer_wrap(moert_device *device, void *memory, size_t bytes,
                               moert_buffer **buffer) {
    MOERT_REQUIRE(device);
    MOERT_REQUIRE(buffer);
    if (bytes == 0)
        return moert_buffer_create(device, 0, buffer);
    if (memory == NULL)
        return MOERT_FAIL(ERROR_USAGE, "cannot wrap %zu bytes of host memory: memory is NULL",
                          bytes);
    if (needs_pieces(device, bytes))
        return wrap_pieces(device, memory, bytes, buffer);
    return create(device, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, memory, bytes, buffer);
}

/* Makes a view consist of the pieces of its parent from `offset_bytes` on. */
static moert_status share_pieces(const moert_buffer *parent, size_t offset_bytes,
                                 moert_buffer *view) {
    const size_t start = parent->piece_start + offset_bytes, first = start / parent->piece_bytes,
                 end = moert_ceil_div(start + view->bytes, parent->piece_bytes);
    MOERT_TRY(MOERT_NEW_ARRAY(&view->pieces, end - first));
    view->piece_count = end - first;
    view->piece_bytes = parent->piece_bytes;
    view->piece_start = start % parent->piece_bytes;
    view->address = parent->address + offset_bytes;
    for (size_t i = 0; i < view->piece_count; i++) {
        view->pieces[i] = parent->pieces[first + i];
        clRetainMemObject(view->pieces[i]);
    }
    return MOERT_OK;
}

/* OpenCL allows no sub-buffers of sub-buffers: replaces a sub-buffer by its parent, and adds the
 * sub-buffer's offset to *offset_bytes. */
static cl_int find_whole(cl_mem *memory, size_t *offset_bytes) {
    cl_mem whole;
    size_t offset;
    cl_int code =
        clGetMemObjectInfo(*memory, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof whole, &whole, NULL);
    if (code == CL_SUCCESS)
        code = clGetMemObjectInfo(*memory, CL_MEM_OFFSET, sizeof offset, &offset, NULL);
    if (code != CL_SUCCESS || whole == NULL)
        return code;
    *memory = whole;
    *offset_bytes += offset;
    return CL_SUCCESS;
}

moert_status moert_buffer_view(const moert_buffer *parent, size_t offset_bytes, size_t bytes,
                               moert_buffer **buffer) {
    MOERT_REQUIRE(parent);
    MOERT_REQUIRE(buffer);
    if (offset_bytes % VIEW_ALIGNMENT_BYTES != 0 || offset_bytes > parent->bytes ||
        bytes > parent->bytes - offset_bytes)
        return MOERT_FAIL(ERROR_USAGE,
                          "view [%zu, +%zu) must lie within its buffer of %zu bytes and start at a "
                          "multiple of %d bytes",
                          offset_bytes, bytes, parent->bytes, VIEW_ALIGNMENT_BYTES);
    /* OpenCL has no empty sub-buffers: an empty view gets a byte of the parent that is never
     * accessed */
    size_t start = bytes > 0 ? offset_bytes : 0, part = moert_max(bytes, 1);
    cl_mem source = moert_buffer_part(parent, &start, &part);
    cl_int code = find_whole(&source, &start);
    if (code != CL_SUCCESS)
        return MOERT_CL_FAIL(parent->device, code, "clGetMemObjectInfo");
    const cl_buffer_region region = {start, part};
    cl_mem memory =
        clCreateSubBuffer(source, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
    if (code != CL_SUCCESS)
        return MOERT_CL_FAIL(parent->device, code, "clCreateSubBuffer");
    moert_buffer *made;
    MOERT_TRY(adopt_memory(parent->device, memory, bytes, &made));
    const moert_status status = part < bytes ? share_pieces(parent, offset_bytes, made) : MOERT_OK;
    if (status != MOERT_OK) {
        moert_buffer_destroy(made);
        return status;
    }
    *buffer = made;
    return MOERT_OK;
}

void moert_buffer_destroy(moert_buffer *buffer) {
    if (buffer == NULL)
        return;
    moert_device_count(buffer->device, 0, buffer->counted_bytes);
    /* kernels must end before the memory is freed: for running kernels, OpenCL retains only memory
     * that OpenCL has allocated */
    if (buffer->host != NULL || buffer->address != 0)
        moert_device_finish(buffer->device);
    for (size_t i = 0; i < buffer->piece_count && buffer->pieces != NULL; i++)
        if (buffer->pieces[i] != NULL)
            clReleaseMemObject(buffer->pieces[i]);
    if (buffer->memory != NULL)
        clReleaseMemObject(buffer->memory);
    MOERT_FREE(buffer->pieces, buffer->host, buffer);
}

void moert_buffers_destroy(moert_buffer *const *buffers, size_t count) {
    for (size_t i = 0; i < count; i++)
        moert_buffer_destroy(buffers[i]);
}

moert_status moert_buffer_reserve(moert_device *device, size_t bytes, moert_buffer **buffer) {
    if (*buffer != NULL && (*buffer)->bytes >= bytes)
        return MOERT_OK;
    if (*buffer != NULL)
        MOERT_DEBUG("a buffer of %zu bytes is replaced by a buffer of %zu bytes", (*buffer)->bytes,
                    bytes);
    moert_buffer_destroy(*buffer);
    *buffer = NULL;
    return moert_buffer_create(device, bytes, buffer);
}

size_t moert_buffer_bytes(const moert_buffer *buffer) {
    return buffer != NULL ? buffer->bytes : 0;
}

moert_device *moert_buffer_device(const moert_buffer *buffer) {
    return buffer != NULL ? buffer->device : NULL;
}

/* The bytes of a buffer as a range of `memory`, a cl_mem without a parent, or of host addresses
 * (memory NULL). */
typedef struct extent {
    const void *memory;
    size_t first, end;
} extent;

static extent extent_of(const moert_buffer *buffer) {
    cl_mem memory = buffer->memory;
    void *host = NULL;
    size_t first = 0;
    if (buffer->pieces != NULL)
        return (extent){NULL, buffer->address, buffer->address + buffer->bytes};
    find_whole(&memory, &first);
    clGetMemObjectInfo(memory, CL_MEM_HOST_PTR, sizeof host, &host, NULL);
    const size_t start = host != NULL ? (size_t)(uintptr_t)host + first : first;
    return (extent){host != NULL ? NULL : memory, start, start + buffer->bytes};
}

bool moert_buffers_overlap(const moert_buffer *a, const moert_buffer *b) {
    const extent one = extent_of(a), other = extent_of(b);
    return one.memory == other.memory && one.first < other.end && other.first < one.end;
}

moert_status moert_buffer_address(moert_buffer *buffer, uint64_t *address) {
    if (buffer->address == 0) {
        moert_buffer *result;
        MOERT_TRY(moert_buffer_create(buffer->device, sizeof *address, &result));
        moert_status status =
            MOERT_RUN(buffer->device, MOERT_FAMILY_COPY, "address_of",
                      ((moert_grid){.x = 1, .y = 1, .z = 1}), MOERT_ARG(buffer), MOERT_ARG(result));
        if (status == MOERT_OK)
            status = moert_buffer_read(result, 0, &buffer->address, sizeof buffer->address);
        moert_buffer_destroy(result);
        MOERT_TRY(status);
    }
    *address = buffer->address;
    return MOERT_OK;
}
