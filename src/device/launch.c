/* Sets a kernel's arguments and enqueues it. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "device/internal.h"

static moert_status set_argument(const moert_kernel *kernel, cl_kernel handle, cl_uint index,
                                 const moert_argument *argument) {
    const bool is_buffer = argument->kind == MOERT_ARGUMENT_BUFFER;
    cl_mem memory = argument->buffer != NULL ? argument->buffer->memory : NULL;
    const void *const value = is_buffer                                 ? &memory
                              : argument->kind == MOERT_ARGUMENT_LOCAL  ? NULL
                              : argument->kind == MOERT_ARGUMENT_STRUCT ? argument->value.data
                                                                        : &argument->value;
    const cl_int code =
        clSetKernelArg(handle, index, is_buffer ? sizeof memory : argument->bytes, value);
    if (moert_cl_status(code) == MOERT_ERROR_MEMORY)
        return MOERT_FAIL(ERROR_MEMORY, "no room for the arguments of kernel %s", kernel->name);
    if (code != CL_SUCCESS)
        return MOERT_FAIL(ERROR_INTERNAL, "argument %u of kernel %s (%zu bytes): %s", index,
                          kernel->name, argument->bytes, moert_cl_error_name(code));
    return MOERT_OK;
}

static cl_int enqueue(moert_device *device, const char *program, const moert_kernel *kernel,
                      cl_kernel handle, const size_t groups[3]) {
    const size_t *items = kernel->items;
    const size_t all[3] = {groups[0] * items[0], groups[1] * items[1], groups[2] * items[2]};
    return clEnqueueNDRangeKernel(device->queue, handle, 3, NULL, all, items, 0, NULL,
                                  moert_profile_event(device, program));
}

/* The first launch of a kernel compiles it, unless another process has compiled it. During the
 * compilation the other processes wait for the cache's lock. The launch depends on no other
 * process, so it always ends. */
static cl_int enqueue_first(moert_device *device, const char *program, moert_kernel *kernel,
                            const size_t groups[3]) {
    moert_cache_entry entry;
    moert_cache_begin(kernel->key, &entry);
    uint64_t start = moert_clock_ns();
    cl_int code = enqueue(device, program, kernel, kernel->handle, groups);
    if (code == CL_SUCCESS && entry.lock >= 0) {
        code = clFinish(device->queue);
        MOERT_DEBUG("compiled %s in %.2f s", kernel->name,
                    (double)(moert_clock_ns() - start) * 1e-9);
    }
    moert_cache_end(&entry, code == CL_SUCCESS);
    free(kernel->key);
    kernel->key = NULL;
    return code;
}

moert_status moert_launch(moert_device *device, const char *program, const char *kernel_name,
                          moert_grid grid, const moert_argument *arguments, size_t count) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0)
        return MOERT_OK;
    moert_kernel *kernel;
    MOERT_TRY(moert_program_kernel(device, program, kernel_name, &kernel));
    if (count != kernel->arguments)
        return MOERT_FAIL(ERROR_INTERNAL, "kernel %s takes %u arguments, not %zu", kernel_name,
                          kernel->arguments, count);
    /* PoCL would abort the process if the local arguments together are too large */
    size_t local = 0;
    for (size_t i = 0; i < count; i++)
        local += arguments[i].kind == MOERT_ARGUMENT_LOCAL ? arguments[i].bytes : 0;
    if (local > device->info.local_bytes)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "kernel %s needs %zu bytes of local memory; %s has %zu", kernel->name,
                          local, device->info.name, device->info.local_bytes);
    cl_kernel handle = kernel->handle;
    if (device->recording != NULL)
        MOERT_TRY(moert_recording_kernel(device->recording, kernel, &handle));
    for (size_t i = 0; i < count; i++)
        MOERT_TRY(set_argument(kernel, handle, (cl_uint)i, &arguments[i]));
    const size_t groups[3] = {grid.x, grid.y, grid.z};
    if (device->recording != NULL)
        return moert_recording_add(device->recording, handle, kernel, groups);
    MOERT_TRACE("%s [%zu, %zu, %zu]", kernel_name, grid.x, grid.y, grid.z);
    cl_int code = kernel->key != NULL ? enqueue_first(device, program, kernel, groups)
                                      : enqueue(device, program, kernel, handle, groups);
    if (code == CL_SUCCESS && moert_log_enabled(MOERT_LOG_TRACE) && !device->adopted)
        code = clFinish(device->queue); /* so that a failure while running names the kernel */
    if (code != CL_SUCCESS)
        return MOERT_CL_FAIL(device, code, kernel_name);
    return MOERT_OK;
}
