/* Implements device memory: buffers, wrapped host memory, views, copies and maps. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "device/internal.h"
#include "device/profile/profile.h"

enum { VIEW_ALIGNMENT_BYTES = 512 };

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
    if (host == NULL) {
        (*buffer)->counted_bytes = padded;
        moert_device_count(device, padded, 0);
    }
    return MOERT_OK;
}

/* On a CPU, asks for host memory, which PoCL allocates in this call. It allocates other memory at
 * the first use, and ends the process if there is none. */
moert_status moert_buffer_create(moert_device *device, size_t bytes, moert_buffer **buffer) {
    MOERT_REQUIRE(device);
    MOERT_REQUIRE(buffer);
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
    return create(device, CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR, memory, bytes, buffer);
}

/* Fails for imported memory of several pieces: only kernels, reads and writes handle it as one
 * buffer. */
static moert_status check_whole(const moert_buffer *buffer, const char *what) {
    if (buffer->piece_count > 1)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s of imported memory in %zu pieces is not possible",
                          what, buffer->piece_count);
    return MOERT_OK;
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
    cl_int code;
    MOERT_TRY(check_whole(parent, "a view"));
    /* OpenCL has no empty views: an empty view gets a byte of the parent, which no one accesses */
    cl_buffer_region region = {bytes > 0 ? offset_bytes : 0, bytes > 0 ? bytes : 1};
    cl_mem memory = clCreateSubBuffer(parent->memory, CL_MEM_READ_WRITE,
                                      CL_BUFFER_CREATE_TYPE_REGION, &region, &code);
    if (code != CL_SUCCESS)
        return MOERT_CL_FAIL(parent->device, code, "clCreateSubBuffer");
    return adopt_memory(parent->device, memory, bytes, buffer);
}

void moert_buffer_destroy(moert_buffer *buffer) {
    if (buffer == NULL)
        return;
    moert_device_count(buffer->device, 0, buffer->counted_bytes);
    for (size_t i = 0; i < buffer->piece_count && buffer->pieces != NULL; i++)
        if (buffer->pieces[i] != NULL)
            clReleaseMemObject(buffer->pieces[i]);
    if (buffer->pieces == NULL)
        clReleaseMemObject(buffer->memory);
    MOERT_FREE(buffer->pieces, buffer);
}

void moert_buffers_destroy(moert_buffer *const *buffers, size_t count) {
    for (size_t i = 0; i < count; i++)
        moert_buffer_destroy(buffers[i]);
}

moert_status moert_buffer_reserve(moert_device *device, size_t bytes, moert_buffer **buffer) {
    if (*buffer != NULL && (*buffer)->bytes >= bytes)
        return MOERT_OK;
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

/* Shortens a range to the part that one command can reach. Returns that part's memory, and makes
 * *offset_bytes relative to it. */
static cl_mem part_of(const moert_buffer *buffer, size_t *offset_bytes, size_t *bytes) {
    if (buffer->pieces == NULL)
        return buffer->memory;
    const size_t piece = *offset_bytes / buffer->piece_bytes;
    *offset_bytes %= buffer->piece_bytes;
    *bytes = moert_min(*bytes, buffer->piece_bytes - *offset_bytes);
    return buffer->pieces[piece];
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
        cl_mem memory = part_of(buffer, &start, &part);
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
        return check_whole(source->piece_count > 1 ? source : target, "a copy of rows of bytes");
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
    if (bytes > 0)
        MOERT_CL(buffer->device,
                 clEnqueueFillBuffer(buffer->device->queue, buffer->memory, &zero, sizeof zero,
                                     offset_bytes, bytes, 0, NULL, copy_event(buffer, bytes)));
    return MOERT_OK;
}

moert_status moert_buffer_map(const moert_buffer *buffer, void *memory) {
    cl_int code;
    MOERT_REQUIRE(buffer);
    MOERT_REQUIRE(memory);
    MOERT_TRY(check_whole(buffer, "a map"));
    void *pointer = clEnqueueMapBuffer(
        buffer->device->queue, buffer->memory, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0,
        buffer->bytes > 0 ? buffer->bytes : 1, 0, NULL, copy_event(buffer, 0), &code);
    if (code != CL_SUCCESS)
        return MOERT_CL_FAIL(buffer->device, code, "clEnqueueMapBuffer");
    memcpy(memory, &pointer, sizeof pointer);
    return MOERT_OK;
}

moert_status moert_buffer_unmap(const moert_buffer *buffer, void *memory) {
    MOERT_REQUIRE(buffer);
    MOERT_CL(buffer->device, clEnqueueUnmapMemObject(buffer->device->queue, buffer->memory, memory,
                                                     0, NULL, copy_event(buffer, 0)));
    return moert_device_finish(buffer->device);
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
        return (extent){buffer, 0, buffer->bytes};
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
