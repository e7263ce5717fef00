/*
 * Records launches once, to enqueue them together any number of times (cl_khr_command_buffer). Each
 * launch waits for the previous launch, as in an in-order queue.
 */
#include "device/record.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "device/internal.h"
#include "device/program.h"
#include "device/queue.h"

#include <CL/cl_ext.h>

struct moert_recording {
    moert_device *device;
    cl_command_buffer_khr handle;
    cl_sync_point_khr last; /* of the latest launch */
    size_t launches, kernels, room;
    cl_kernel *kernel; /* [kernels] */
    clCreateCommandBufferKHR_fn create;
    clCommandNDRangeKernelKHR_fn launch;
    clFinalizeCommandBufferKHR_fn finalize;
    clEnqueueCommandBufferKHR_fn enqueue;
    clReleaseCommandBufferKHR_fn release;
};

static moert_status find_functions(moert_recording *recording) {
    cl_platform_id platform;
    const struct {
        const char *name;
        void *target;
    } functions[] = {{"clCreateCommandBufferKHR", &recording->create},
                     {"clCommandNDRangeKernelKHR", &recording->launch},
                     {"clFinalizeCommandBufferKHR", &recording->finalize},
                     {"clEnqueueCommandBufferKHR", &recording->enqueue},
                     {"clReleaseCommandBufferKHR", &recording->release}};
    MOERT_CL(recording->device, clGetDeviceInfo(recording->device->id, CL_DEVICE_PLATFORM,
                                                sizeof platform, &platform, NULL));
    for (size_t i = 0; i < MOERT_COUNT(functions); i++) {
        void *found = clGetExtensionFunctionAddressForPlatform(platform, functions[i].name);
        if (found == NULL)
            return MOERT_FAIL(ERROR_UNSUPPORTED, "the platform of %s has no OpenCL function %s",
                              recording->device->info.name, functions[i].name);
        memcpy(functions[i].target, &found, sizeof found);
    }
    return MOERT_OK;
}

moert_status moert_recording_start(moert_device *device, moert_recording **recording) {
    const cl_command_buffer_properties_khr properties[] = {
        CL_COMMAND_BUFFER_FLAGS_KHR, CL_COMMAND_BUFFER_SIMULTANEOUS_USE_KHR, 0};
    char extensions[8192] = "";
    cl_bitfield capabilities = 0;
    cl_int code = CL_SUCCESS;
    moert_recording *made;
    moert_status status;
    /* the device must be able to enqueue a command buffer again before the buffer's last execution
     * has ended */
    clGetDeviceInfo(device->id, CL_DEVICE_EXTENSIONS, sizeof extensions - 1, extensions, NULL);
    if (strstr(extensions, "cl_khr_command_buffer") == NULL)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s has no cl_khr_command_buffer to record into",
                          device->info.name);
    clGetDeviceInfo(device->id, CL_DEVICE_COMMAND_BUFFER_CAPABILITIES_KHR, sizeof capabilities,
                    &capabilities, NULL);
    if ((capabilities & CL_COMMAND_BUFFER_CAPABILITY_SIMULTANEOUS_USE_KHR) == 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "%s cannot enqueue a recording again before it is done",
                          device->info.name);
    MOERT_TRY(MOERT_NEW(&made));
    made->device = device;
    MOERT_TRY_OR(release, find_functions(made));
    made->handle = made->create(1, &device->queue, properties, &code);
    if (code != CL_SUCCESS) {
        status = MOERT_CL_FAIL(device, code, "clCreateCommandBufferKHR");
        goto release;
    }
    device->recording = made;
    *recording = made;
    return MOERT_OK;
release:
    free(made);
    return status;
}

/* *handle = a new kernel handle that the recording owns. A driver may read arguments as late as at
 * replay, so recorded launches must not share a handle. */
static moert_status new_handle(moert_recording *recording, const moert_kernel *kernel,
                               cl_kernel *handle) {
    cl_program program;
    cl_int code;
    MOERT_TRY(MOERT_GROW(&recording->kernel, &recording->room, recording->kernels + 1));
    MOERT_CL(recording->device,
             clGetKernelInfo(kernel->handle, CL_KERNEL_PROGRAM, sizeof program, &program, NULL));
    *handle = clCreateKernel(program, kernel->name, &code);
    if (code != CL_SUCCESS)
        return MOERT_CL_FAIL(recording->device, code, kernel->name);
    recording->kernel[recording->kernels++] = *handle;
    return MOERT_OK;
}

moert_status moert_recording_add(moert_recording *recording, const moert_kernel *kernel,
                                 const size_t groups[3], const moert_argument *arguments) {
    const size_t *items = kernel->items;
    const size_t all[3] = {groups[0] * items[0], groups[1] * items[1], groups[2] * items[2]};
    const cl_uint waits = recording->launches > 0 ? 1 : 0;
    const cl_sync_point_khr before = recording->last;
    cl_kernel handle = NULL;
    MOERT_TRY(new_handle(recording, kernel, &handle));
    MOERT_TRY(moert_kernel_set(kernel, handle, arguments));
    const cl_int code =
        recording->launch(recording->handle, NULL, NULL, handle, 3, NULL, all, items, waits,
                          waits > 0 ? &before : NULL, &recording->last, NULL);
    if (code != CL_SUCCESS)
        return MOERT_CL_FAIL(recording->device, code, kernel->name);
    recording->launches++;
    return MOERT_OK;
}

moert_status moert_recording_stop(moert_recording *recording) {
    recording->device->recording = NULL;
    MOERT_CL(recording->device, recording->finalize(recording->handle));
    return MOERT_OK;
}

moert_status moert_recording_play(moert_recording *recording) {
    if (recording->launches == 0)
        return MOERT_OK;
    MOERT_CL(recording->device,
             recording->enqueue(0, NULL, recording->handle, 0, NULL,
                                moert_command_event(recording->device, "recording")));
    return MOERT_OK;
}

void moert_recording_destroy(moert_recording *recording) {
    if (recording == NULL)
        return;
    if (recording->device->recording == recording)
        recording->device->recording = NULL;
    moert_queue_finish(recording->device);
    recording->release(recording->handle);
    for (size_t i = 0; i < recording->kernels; i++)
        clReleaseKernel(recording->kernel[i]);
    MOERT_FREE(recording->kernel, recording);
}
