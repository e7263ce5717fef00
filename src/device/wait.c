/* Waiting for a device while the host does something else. */
#include <time.h>

#include "device/internal.h"

enum { LOOK_NS = 200000 }; /* from one look at the device to the next */

/* Whether a command has ended. */
static moert_status look(const moert_device *device, cl_event event, bool *ended) {
    cl_int state;
    MOERT_CL(device,
             clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL));
    *ended = state == CL_COMPLETE;
    return state < 0 ? MOERT_CL_FAIL(device, state, "a command of the device") : MOERT_OK;
}

moert_status moert_device_wait(moert_device *device, moert_status (*meanwhile)(void *context),
                               void *context) {
    cl_event marker;
    bool ended = false;
    MOERT_CL(device, clEnqueueMarkerWithWaitList(device->queue, 0, NULL, &marker));
    cl_int code = clFlush(device->queue);
    moert_status status = code == CL_SUCCESS ? MOERT_OK : MOERT_CL_FAIL(device, code, "clFlush");
    while (status == MOERT_OK && !ended) {
        status = meanwhile(context);
        if (status == MOERT_OK)
            status = look(device, marker, &ended);
        if (!ended)
            nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
    }
    clReleaseEvent(marker);
    return status;
}
