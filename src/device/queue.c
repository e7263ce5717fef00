/* Implements the two queues of a device, events in these queues, and waits for the device. */
#include "device/queue.h"

#include <stdlib.h>
#include <time.h>

#include "base/config.h"
#include "base/memory.h"
#include "device/internal.h"

/* Calls clCreateCommandQueue of OpenCL 1.2. Drivers of OpenCL 1.2 have no other function to create
 * a queue, and with Oclgrind 21.10 the loader never returns from
 * clCreateCommandQueueWithProperties. */
static moert_status create(const moert_device *device, cl_command_queue_properties properties,
                           cl_command_queue *queue) {
    cl_int code;
    cl_command_queue made = clCreateCommandQueue(device->context, device->id, properties, &code);
    if (code != CL_SUCCESS)
        return MOERT_CL_FAIL(device, code, "clCreateCommandQueue");
    *queue = made;
    return MOERT_OK;
}

moert_status moert_queue_open(moert_device *device, bool profiles) {
    cl_command_queue before = device->queue;
    MOERT_TRY(create(device, profiles ? CL_QUEUE_PROFILING_ENABLE : 0, &device->queue));
    if (before != NULL)
        clReleaseCommandQueue(before);
    return MOERT_OK;
}

/* ---- the second queue ---- */

bool moert_device_has_second_queue(const moert_device *device) {
    const bool waits = device->info.is_gpu || moert_config_get()->sync == MOERT_SYNC_DEVICE;
    return !device->adopted && device->recording == NULL && !device->hook.serial && waits;
}

moert_status moert_device_use_queue(moert_device *device, bool aside) {
    cl_command_queue before = device->queue;
    cl_command_queue_properties current = 0;
    if (device->second_in_use == aside || (aside && !moert_device_has_second_queue(device)))
        return MOERT_OK;
    if (device->other == NULL) { /* the second queue profiles if the first does */
        MOERT_CL(device, clGetCommandQueueInfo(before, CL_QUEUE_PROPERTIES, sizeof current,
                                               &current, NULL));
        MOERT_TRY(create(device, current, &device->other));
    }
    device->queue = device->other;
    device->other = before;
    device->second_in_use = aside;
    device->both_used = true;
    return MOERT_OK;
}

int moert_queue_finish(moert_device *device) {
    const cl_int code = clFinish(device->queue);
    const cl_int other = device->both_used ? clFinish(device->other) : CL_SUCCESS;
    device->both_used = device->second_in_use;
    device->awaits &= code != CL_SUCCESS;
    return code != CL_SUCCESS ? code : other;
}

void moert_queue_release_other(moert_device *device) {
    if (device->other != NULL)
        clReleaseCommandQueue(device->other);
    device->other = NULL;
}

moert_status moert_device_finish(moert_device *device) {
    MOERT_CL(device, moert_queue_finish(device));
    return MOERT_OK;
}

moert_status moert_device_flush(moert_device *device) {
    MOERT_CL(device, clFlush(device->queue));
    return MOERT_OK;
}

/* ---- events ---- */

struct moert_event {
    moert_device *device;
    cl_event handle;
};

moert_status moert_event_record(moert_device *device, moert_event **event) {
    moert_event *made;
    MOERT_TRY(MOERT_NEW(&made));
    made->device = device;
    cl_int code = clEnqueueMarkerWithWaitList(device->queue, 0, NULL, &made->handle);
    if (code == CL_SUCCESS)
        code = clFlush(device->queue);
    if (code != CL_SUCCESS) {
        moert_event_free(made);
        return MOERT_CL_FAIL(device, code, "clEnqueueMarkerWithWaitList");
    }
    *event = made;
    return MOERT_OK;
}

moert_status moert_event_test(const moert_event *event, bool *passed) {
    cl_int state;
    MOERT_CL(event->device, clGetEventInfo(event->handle, CL_EVENT_COMMAND_EXECUTION_STATUS,
                                           sizeof state, &state, NULL));
    *passed = state <= CL_COMPLETE;
    return state < 0 ? MOERT_CL_FAIL(event->device, state, "a command of the device") : MOERT_OK;
}

moert_status moert_event_follow(const moert_event *event) {
    MOERT_CL(event->device,
             clEnqueueBarrierWithWaitList(event->device->queue, 1, &event->handle, NULL));
    return MOERT_OK;
}

moert_status moert_event_wait(const moert_event *event) {
    MOERT_CL(event->device, clWaitForEvents(1, &event->handle));
    return MOERT_OK;
}

void moert_event_free(moert_event *event) {
    if (event == NULL)
        return;
    if (event->handle != NULL)
        clReleaseEvent(event->handle);
    free(event);
}

/* ---- waiting while the host does something else ---- */

enum { LOOK_NS = 200000 }; /* interval at which the host tests whether the device is done */

moert_status moert_device_wait(moert_device *device, moert_status (*meanwhile)(void *context),
                               void *context) {
    moert_event *end;
    bool ended = false;
    MOERT_TRY(moert_event_record(device, &end));
    moert_status status = MOERT_OK;
    while (status == MOERT_OK && !ended) {
        status = meanwhile(context);
        if (status == MOERT_OK)
            status = moert_event_test(end, &ended);
        if (!ended)
            nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
    }
    moert_event_free(end);
    return status;
}
