/* Implements device memory: buffers, wrapped host memory, views, copies and maps. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "base/memory.h"
#include "device/internal.h"
#include "device/profile/profile.h"

enum { VIEW_ALIGNMENT_BYTES = 512, PAGE_BYTES = 4096, HUGE_PAGE_BYTES = 2 << 20 };

size_t moert_device_peak_bytes(const moert_device *device) {
    return device->peak_bytes;
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
 * entries of the TLB. The memory must not have been used. Its own queue does not wait for work. */
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

/* Wraps host memory as pieces, of which kernels see one range. */
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

/* Makes a buffer that is larger than one allocation may be, of pieces of host memory. */
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

/* On a CPU, asks for host memory, which PoCL allocates in this call. It allocates other memory at
 * the first use, and ends the process if there is none. */
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
        return MOERT_FAIL(ERROR_USAGE, "cannot wrap %zu bytes at NULL", bytes);
    if (needs_pieces(device, bytes))
        return wrap_pieces(device, memory, bytes, buffer);
    return create(device, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, memory, bytes, buffer);
}

static moert_status fail_in_pieces(const moert_buffer *buffer, const char *what) {
    return MOERT_FAIL(ERROR_UNSUPPORTED, "%s of memory in %zu pieces is not possible", what,
                      buffer->piece_count);
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

/* OpenCL has no regions of regions: replaces a region by the memory that it is of. */
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
        return MOERT_FAIL(
            ERROR_USAGE,
            "view [%zu, +%zu) of a buffer of %zu bytes; the offset must be a multiple of %d",
            offset_bytes, bytes, parent->bytes, VIEW_ALIGNMENT_BYTES);
    /* OpenCL has no empty views: an empty view gets a byte of the parent, which no one accesses */
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
    if (buffer->host != NULL)
        moert_device_finish(buffer->device); /* OpenCL does not keep this memory for kernels */
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
        MOERT_DEBUG("a buffer grows from %zu to %zu bytes", (*buffer)->bytes, bytes);
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

/* Past 2 GiB, fills by NVIDIA's driver never end or write to wrong addresses, and the driver's
 * commands stop at the end of a piece of imported memory. Kernels of kernels/lib/copy.cl handle
 * such ranges if they consist of whole floats. */
static const size_t NARROW_BYTES = (size_t)1 << 31;
enum {
    SLOW_BYTES = 1 << 20, /* from this size on, fills by NVIDIA's driver are slower than a kernel */
    GROUP_FLOATS = 65536, /* floats of a work-group, as in kernels/lib/copy.cl */
};

static bool is_wide(const moert_buffer *buffer, size_t end_bytes, size_t alignment) {
    return (end_bytes > NARROW_BYTES || buffer->piece_count > 1) && alignment % sizeof(float) == 0;
}

static moert_grid groups_of(size_t bytes) {
    return (moert_grid){moert_ceil_div(bytes / sizeof(float), GROUP_FLOATS), 1, 1};
}

static moert_status check_range(const moert_buffer *buffer, size_t offset_bytes, size_t bytes) {
    if (offset_bytes > buffer->bytes || bytes > buffer->bytes - offset_bytes)
        return MOERT_FAIL(ERROR_USAGE, "range [%zu, +%zu) lies outside a buffer of %zu bytes",
                          offset_bytes, bytes, buffer->bytes);
    return MOERT_OK;
}

/* Reports a command that moves `bytes` of device memory to a profile. Returns where to store the
 * command's event. */
static cl_event *copy_event(const moert_buffer *buffer, size_t bytes) {
    moert_profile_work(buffer->device, MOERT_FAMILY_COPY, 0.0, (double)bytes);
    return moert_profile_event(buffer->device, MOERT_FAMILY_COPY);
}

cl_mem moert_buffer_part(const moert_buffer *buffer, size_t *offset_bytes, size_t *bytes) {
    if (buffer->pieces == NULL)
        return buffer->memory;
    const size_t start = buffer->piece_start + *offset_bytes;
    *offset_bytes = start % buffer->piece_bytes;
    *bytes = moert_min(*bytes, buffer->piece_bytes - *offset_bytes);
    return buffer->pieces[start / buffer->piece_bytes];
}

/* Reads or writes a range, piece by piece; blocks. */
static moert_status transfer(const moert_buffer *buffer, size_t offset_bytes, char *host,
                             size_t bytes, bool reads) {
    MOERT_REQUIRE(buffer);
    if (host == NULL && bytes > 0)
        return MOERT_FAIL(ERROR_USAGE, "the host memory of a copy of %zu bytes is NULL", bytes);
    cl_command_queue queue = buffer->device->queue;
    MOERT_TRY(check_range(buffer, offset_bytes, bytes));
    for (size_t done = 0, part; done < bytes; done += part) {
        size_t start = offset_bytes + done;
        part = bytes - done;
        cl_mem memory = moert_buffer_part(buffer, &start, &part);
        cl_event *event = copy_event(buffer, part);
        if (reads)
            MOERT_CL(buffer->device, clEnqueueReadBuffer(queue, memory, CL_TRUE, start, part,
                                                         host + done, 0, NULL, event));
        else
            MOERT_CL(buffer->device, clEnqueueWriteBuffer(queue, memory, CL_TRUE, start, part,
                                                          host + done, 0, NULL, event));
    }
    return MOERT_OK;
}

moert_status moert_buffer_write(moert_buffer *buffer, size_t offset_bytes, const void *source,
                                size_t bytes) {
    return transfer(buffer, offset_bytes, (char *)(uintptr_t)source, bytes, false);
}

moert_status moert_buffer_read(const moert_buffer *buffer, size_t offset_bytes, void *target,
                               size_t bytes) {
    return transfer(buffer, offset_bytes, target, bytes, true);
}

moert_status moert_buffer_write_ends(size_t groups, size_t rows, moert_buffer *ends) {
    uint32_t *host;
    MOERT_TRY(MOERT_NEW_ARRAY(&host, groups));
    for (size_t g = 0; g < groups; g++)
        host[g] = (uint32_t)((g + 1) * rows);
    const moert_status status = moert_buffer_write(ends, 0, host, groups * sizeof *host);
    free(host);
    return status;
}

moert_status moert_buffer_copy(const moert_buffer *source, size_t source_offset_bytes,
                               moert_buffer *target, size_t target_offset_bytes, size_t bytes) {
    MOERT_REQUIRE(source);
    MOERT_REQUIRE(target);
    MOERT_TRY(check_range(source, source_offset_bytes, bytes));
    MOERT_TRY(check_range(target, target_offset_bytes, bytes));
    const size_t ends = moert_max(source_offset_bytes, target_offset_bytes) + bytes;
    const size_t alignment = source_offset_bytes | target_offset_bytes | bytes;
    if (is_wide(source, ends, alignment) || is_wide(target, ends, alignment)) {
        moert_profile_work(source->device, MOERT_FAMILY_COPY, 0.0, 2.0 * (double)bytes);
        return MOERT_RUN(source->device, MOERT_FAMILY_COPY, "copy", groups_of(bytes),
                         MOERT_ARG(source), MOERT_ARG(source_offset_bytes / sizeof(float)),
                         MOERT_ARG(target), MOERT_ARG(target_offset_bytes / sizeof(float)),
                         MOERT_ARG(bytes / sizeof(float)));
    }
    if (source->piece_count > 1 || target->piece_count > 1)
        return fail_in_pieces(source->piece_count > 1 ? source : target, "a copy of bytes");
    if (bytes > 0)
        MOERT_CL(source->device,
                 clEnqueueCopyBuffer(source->device->queue, source->memory, target->memory,
                                     source_offset_bytes, target_offset_bytes, bytes, 0, NULL,
                                     copy_event(source, 2 * bytes)));
    return MOERT_OK;
}

moert_status moert_buffer_copy_rows(const moert_buffer *source, size_t source_row_bytes,
                                    moert_buffer *target, size_t target_row_bytes, size_t rows) {
    const size_t origin[3] = {0, 0, 0}, region[3] = {target_row_bytes, rows, 1};
    if (rows == 0 || target_row_bytes == 0)
        return MOERT_OK;
    MOERT_TRY(check_range(source, 0, (rows - 1) * source_row_bytes + target_row_bytes));
    MOERT_TRY(check_range(target, 0, rows * target_row_bytes));
    const bool in_pieces = source->piece_count > 1 || target->piece_count > 1;
    if (in_pieces && (source_row_bytes | target_row_bytes) % sizeof(float) != 0)
        return fail_in_pieces(source->piece_count > 1 ? source : target, "a copy of rows of bytes");
    if (in_pieces) {
        moert_profile_work(source->device, MOERT_FAMILY_COPY, 0.0,
                           2.0 * (double)(rows * target_row_bytes));
        return MOERT_RUN(source->device, MOERT_FAMILY_COPY, "copy_rows", ((moert_grid){rows, 1, 1}),
                         MOERT_ARG(source), MOERT_ARG(source_row_bytes / sizeof(float)),
                         MOERT_ARG(target), MOERT_ARG(target_row_bytes / sizeof(float)));
    }
    MOERT_CL(source->device,
             clEnqueueCopyBufferRect(source->device->queue, source->memory, target->memory, origin,
                                     origin, region, source_row_bytes, 0, target_row_bytes, 0, 0,
                                     NULL, copy_event(source, 2 * rows * target_row_bytes)));
    return MOERT_OK;
}

moert_status moert_buffer_clear(moert_buffer *buffer, size_t offset_bytes, size_t bytes) {
    const cl_uchar zero = 0;
    const size_t alignment = offset_bytes | bytes;
    MOERT_REQUIRE(buffer);
    MOERT_TRY(check_range(buffer, offset_bytes, bytes));
    /* NVIDIA's driver fills at a tenth of the memory's rate */
    if (is_wide(buffer, offset_bytes + bytes, alignment) ||
        (buffer->device->info.nvidia > 0 && bytes >= SLOW_BYTES &&
         alignment % sizeof(float) == 0)) {
        moert_profile_work(buffer->device, MOERT_FAMILY_COPY, 0.0, (double)bytes);
        return MOERT_RUN(buffer->device, MOERT_FAMILY_COPY, "clear", groups_of(bytes),
                         MOERT_ARG(buffer), MOERT_ARG(offset_bytes / sizeof(float)),
                         MOERT_ARG(bytes / sizeof(float)));
    }
    if (buffer->piece_count > 1)
        return fail_in_pieces(buffer, "a fill of bytes");
    if (bytes > 0)
        MOERT_CL(buffer->device,
                 clEnqueueFillBuffer(buffer->device->queue, buffer->memory, &zero, sizeof zero,
                                     offset_bytes, bytes, 0, NULL, copy_event(buffer, bytes)));
    return MOERT_OK;
}

/* Maps the part of a buffer from *done bytes on that one command reaches, and adds its size. */
static moert_status map_part(const moert_buffer *buffer, size_t *done, char **memory) {
    cl_int code;
    size_t start = *done, part = moert_max(buffer->bytes, 1) - start;
    cl_mem source = moert_buffer_part(buffer, &start, &part);
    *memory = clEnqueueMapBuffer(buffer->device->queue, source, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE,
                                 start, part, 0, NULL, copy_event(buffer, 0), &code);
    if (code != CL_SUCCESS)
        return MOERT_CL_FAIL(buffer->device, code, "clEnqueueMapBuffer");
    *done += part;
    return MOERT_OK;
}

/* Unmaps the first `bytes` bytes of a buffer. */
static moert_status unmap_parts(const moert_buffer *buffer, char *memory, size_t bytes) {
    for (size_t done = 0, part; done < bytes; done += part) {
        size_t start = done;
        part = bytes - done;
        cl_mem source = moert_buffer_part(buffer, &start, &part);
        MOERT_CL(buffer->device,
                 clEnqueueUnmapMemObject(buffer->device->queue, source, memory + done, 0, NULL,
                                         copy_event(buffer, 0)));
    }
    return moert_device_finish(buffer->device);
}

moert_status moert_buffer_map(const moert_buffer *buffer, void *memory) {
    MOERT_REQUIRE(buffer);
    MOERT_REQUIRE(memory);
    if (buffer->piece_count > 1 && !buffer->device->info.is_cpu)
        return fail_in_pieces(buffer, "a map");
    char *first = NULL, *next;
    size_t done = 0;
    MOERT_TRY(map_part(buffer, &done, &first));
    while (done < buffer->bytes) {
        const moert_status status = map_part(buffer, &done, &next);
        if (status != MOERT_OK) {
            unmap_parts(buffer, first, done);
            return status;
        }
    }
    memcpy(memory, &first, sizeof first);
    return MOERT_OK;
}

moert_status moert_buffer_unmap(const moert_buffer *buffer, void *memory) {
    MOERT_REQUIRE(buffer);
    return unmap_parts(buffer, memory, moert_max(buffer->bytes, 1));
}

/* The memory that a buffer is in: the cl_mem without a parent, or host memory. */
typedef struct extent {
    const void *memory;
    size_t first, end;
} extent;

static extent extent_of(const moert_buffer *buffer) {
    cl_mem parent = NULL, memory = buffer->memory;
    void *host = NULL;
    size_t first = 0;
    if (buffer->pieces != NULL)
        return (extent){NULL, buffer->address, buffer->address + buffer->bytes};
    if (clGetMemObjectInfo(memory, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof parent, &parent, NULL) ==
            CL_SUCCESS &&
        parent != NULL) {
        clGetMemObjectInfo(memory, CL_MEM_OFFSET, sizeof first, &first, NULL);
        memory = parent;
    }
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
