/* Implements commands on device memory: reads, writes, copies, fills and maps. */
#include <stdlib.h>
#include <string.h>

#include "args/forms.h"
#include "base/memory.h"
#include "device/buffer.h"
#include "device/internal.h"
#include "device/launch.h"

/* Past 2 GiB, fills by NVIDIA's driver either never end or write to wrong addresses. In imported
 * memory, the driver's commands stop at the end of a piece. Kernels of kernels/lib/copy.cl handle
 * such ranges if the ranges consist of whole floats. */
static const size_t NARROW_BYTES = (size_t)1 << 31;
/* From this size on, fills by NVIDIA's driver are slower than a kernel. */
enum { SLOW_BYTES = 1 << 20 };

static bool is_wide(const moert_buffer *buffer, size_t end_bytes, size_t alignment) {
    return (end_bytes > NARROW_BYTES || buffer->piece_count > 1) && alignment % sizeof(float) == 0;
}

static moert_grid groups_of(size_t bytes) {
    return (moert_grid){moert_ceil_div(bytes / sizeof(float), MOERT_COPY_FLOATS), 1, 1};
}

static moert_status check_range(const moert_buffer *buffer, size_t offset_bytes, size_t bytes) {
    if (offset_bytes > buffer->bytes || bytes > buffer->bytes - offset_bytes)
        return MOERT_FAIL(ERROR_USAGE, "range [%zu, +%zu) lies outside a buffer of %zu bytes",
                          offset_bytes, bytes, buffer->bytes);
    return MOERT_OK;
}

static moert_status fail_in_pieces(const moert_buffer *buffer, const char *what) {
    return MOERT_FAIL(ERROR_UNSUPPORTED,
                      "%s does not work on a buffer that consists of %zu pieces of memory", what,
                      buffer->piece_count);
}

/* Reports a command that moves `bytes` of device memory. Returns where to store the command's
 * event. */
static cl_event *copy_event(const moert_buffer *buffer, size_t bytes) {
    moert_command_bytes(buffer->device, MOERT_FAMILY_COPY, bytes);
    return moert_command_event(buffer->device, MOERT_FAMILY_COPY);
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
        moert_command_bytes(source->device, MOERT_FAMILY_COPY, 2 * bytes);
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
        moert_command_bytes(source->device, MOERT_FAMILY_COPY, 2 * rows * target_row_bytes);
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
        moert_command_bytes(buffer->device, MOERT_FAMILY_COPY, bytes);
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

/* Maps the part of a buffer from *done bytes on that one command reaches, and adds the part's size
 * to *done. */
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
