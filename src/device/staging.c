/* Host memory together with device memory: see staging.h. */
#include "device/staging.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "device/buffer.h"
#include "device/internal.h"

enum { PAGE_BYTES = 4096 };

struct moert_staging {
    moert_buffer *buffer;
    void *host;
    cl_mem locked; /* page-locked memory, mapped at `host`; NULL: `host` is the buffer's own
                      memory */
};

/* Allocates page-locked memory, which stays mapped, and a buffer on the device. */
static moert_status lock_memory(moert_device *device, size_t bytes, moert_staging *made) {
    cl_int code;
    made->locked = clCreateBuffer(device->context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, bytes,
                                  NULL, &code);
    if (code != CL_SUCCESS)
        return MOERT_FAIL(ERROR_MEMORY, "%s has no room for %zu page-locked bytes (%s)",
                          device->info.name, bytes, moert_cl_error_name(code));
    made->host = clEnqueueMapBuffer(device->queue, made->locked, CL_TRUE,
                                    CL_MAP_READ | CL_MAP_WRITE, 0, bytes, 0, NULL, NULL, &code);
    if (code != CL_SUCCESS)
        return MOERT_CL_FAIL(device, code, "clEnqueueMapBuffer");
    memset(made->host, 0, bytes);
    return moert_buffer_create(device, bytes, &made->buffer);
}

/* Allocates host memory with the tail of MOERT_BUFFER_TAIL_BYTES, and wraps it as a buffer. */
static moert_status wrap_host_memory(moert_device *device, size_t bytes, moert_staging *made) {
    const size_t pages = moert_round_up(bytes + MOERT_BUFFER_TAIL_BYTES, PAGE_BYTES);
    made->host = aligned_alloc(PAGE_BYTES, pages);
    if (made->host == NULL)
        return MOERT_FAIL(ERROR_MEMORY, "no room for %zu bytes of host memory", pages);
    memset(made->host, 0, pages);
    MOERT_TRY(moert_buffer_wrap(device, made->host, bytes, &made->buffer));
    made->buffer->counted_bytes = pages;
    moert_device_count(device, pages, 0);
    return MOERT_OK;
}

moert_status moert_staging_create(moert_device *device, size_t bytes, moert_staging **staging) {
    moert_staging *made;
    moert_status status;
    MOERT_TRY(MOERT_NEW(&made));
    bytes = moert_max(bytes, 1);
    MOERT_TRY_OR(destroy,
                 (device->info.is_cpu ? wrap_host_memory : lock_memory)(device, bytes, made));
    *staging = made;
    return MOERT_OK;
destroy:
    moert_staging_destroy(made);
    return status;
}

size_t moert_staging_room(size_t bytes) {
    return moert_max(moert_with_room(bytes), 1);
}

moert_status moert_staging_reserve(moert_device *device, size_t bytes, moert_staging **staging) {
    if (*staging != NULL && moert_buffer_bytes((*staging)->buffer) >= bytes)
        return MOERT_OK;
    moert_staging_destroy(*staging);
    *staging = NULL;
    return moert_staging_create(device, moert_staging_room(bytes), staging);
}

void moert_staging_destroy(moert_staging *staging) {
    if (staging == NULL)
        return;
    if (staging->buffer != NULL)
        moert_device_finish(moert_buffer_device(staging->buffer));
    moert_buffer_destroy(staging->buffer);
    if (staging->locked != NULL)
        clReleaseMemObject(staging->locked);
    else
        free(staging->host);
    free(staging);
}

moert_buffer *moert_staging_buffer(const moert_staging *staging) {
    return staging->buffer;
}

void *moert_staging_host(const moert_staging *staging) {
    return staging->host;
}

/* Copies a range, unless host and device share the memory. */
static moert_status copy(moert_staging *staging, size_t offset_bytes, size_t bytes, bool to_host) {
    moert_device *device = moert_buffer_device(staging->buffer);
    char *host = (char *)staging->host + offset_bytes;
    const size_t all = moert_buffer_bytes(staging->buffer);
    if (offset_bytes > all || bytes > all - offset_bytes)
        return MOERT_FAIL(ERROR_USAGE,
                          "range [%zu, +%zu) lies outside a staging buffer of %zu bytes",
                          offset_bytes, bytes, all);
    if (staging->locked == NULL || bytes == 0)
        return MOERT_OK;
    cl_event *event = moert_command_event(device, MOERT_FAMILY_COPY);
    if (to_host)
        MOERT_CL(device, clEnqueueReadBuffer(device->queue, staging->buffer->memory, CL_FALSE,
                                             offset_bytes, bytes, host, 0, NULL, event));
    else
        MOERT_CL(device, clEnqueueWriteBuffer(device->queue, staging->buffer->memory, CL_FALSE,
                                              offset_bytes, bytes, host, 0, NULL, event));
    return MOERT_OK;
}

moert_status moert_staging_copy_to_host(moert_staging *staging, size_t offset_bytes, size_t bytes) {
    return copy(staging, offset_bytes, bytes, true);
}

moert_status moert_staging_copy_to_device(moert_staging *staging, size_t offset_bytes,
                                          size_t bytes) {
    return copy(staging, offset_bytes, bytes, false);
}
