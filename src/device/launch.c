/* Checks a launch, and enqueues or records it. */
#include "device/launch.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/phase.h"
#include "base/progress.h"
#include "base/text.h"
#include "device/internal.h"
#include "device/pocl/pocl.h"
#include "device/program.h"
#include "device/record.h"

static moert_status enqueue(moert_device *device, const char *program, const moert_kernel *kernel,
                            const size_t groups[3]) {
    const size_t *items = kernel->items;
    const size_t all[3] = {groups[0] * items[0], groups[1] * items[1], groups[2] * items[2]};
    cl_int code = clEnqueueNDRangeKernel(device->queue, kernel->handle, 3, NULL, all, items, 0,
                                         NULL, moert_command_event(device, program));
    if (code == CL_SUCCESS && moert_log_enabled(MOERT_LOG_TRACE) && !device->adopted)
        code = clFinish(device->queue); /* waits, so that the message of a failure at run time names
                                           the kernel */
    return code == CL_SUCCESS ? MOERT_OK : MOERT_CL_FAIL(device, code, kernel->name);
}

/* The first launch of a kernel compiles the kernel, unless another process has compiled it. During
 * the compilation the other processes wait for the cache's lock. The launch depends on no other
 * process, so it always ends. If the queue may wait for an event of the caller, this function does
 * not wait for the launch: PoCL then compiles the kernel later, and the cache gets no entry. */
static moert_status enqueue_first(moert_device *device, const char *program, moert_kernel *kernel,
                                  bool large, const size_t groups[3]) {
    moert_pocl_step step;
    const uint64_t start = moert_clock_ns();
    char *key = moert_text_format("%s%s", kernel->key, large ? "-large" : "");
    moert_status status;
    MOERT_TRY_OR(free_key, moert_pocl_begin(key, kernel->name, &step));
    moert_phase_busy_begin();
    if (step.compiles)
        moert_progress_begin("compiling kernels", 0);
    status = enqueue(device, program, kernel, groups);
    const bool waits = status == MOERT_OK && !device->awaits;
    if (waits && step.compiles && step.entry.path != NULL) {
        const cl_int code = clFinish(device->queue);
        if (code != CL_SUCCESS)
            status = MOERT_CL_FAIL(device, code, kernel->name);
        MOERT_DEBUG("compiled %s in %.2f s", kernel->name,
                    (double)(moert_clock_ns() - start) * 1e-9);
    }
    if (step.compiles) {
        moert_progress_add(1);
        moert_progress_end();
    }
    moert_phase_busy_end();
    moert_pocl_end(&step, waits && status == MOERT_OK);
    kernel->launched[large] = true;
free_key:
    free(key);
    return status;
}

/* PoCL compiles a kernel once for grids of less than 65535 work-items in each dimension and once
 * for larger grids. */
static bool is_large(const moert_kernel *kernel, const size_t groups[3]) {
    size_t most = 0;
    for (int i = 0; i < 3; i++)
        most = moert_max(most, groups[i] * kernel->items[i]);
    return most >= UINT16_MAX;
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
    const size_t groups[3] = {grid.x, grid.y, grid.z};
    if (device->recording != NULL)
        return moert_recording_add(device->recording, kernel, groups, arguments);
    MOERT_TRY(moert_kernel_set(kernel, kernel->handle, arguments));
    MOERT_TRACE("%s [%zu, %zu, %zu]", kernel_name, grid.x, grid.y, grid.z);
    const bool large = is_large(kernel, groups);
    if (kernel->key != NULL && !kernel->launched[large])
        return enqueue_first(device, program, kernel, large, groups);
    return enqueue(device, program, kernel, groups);
}
