/* The two in-order queues of a device, events in these queues, and waits. */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "moert/device.h"

/* ---- the queue in use ---- */

/* Submits the enqueued commands, which a driver may otherwise hold back until the host waits.
 * Errors: ERROR_DEVICE. */
moert_status moert_device_flush(moert_device *device);

/* Waits for all commands enqueued so far, and calls `meanwhile` repeatedly during the wait. Returns
 * a failure of `meanwhile` at once. */
moert_status moert_device_wait(moert_device *device, moert_status (*meanwhile)(void *context),
                               void *context);

/* ---- the second queue ---- */

/*
 * A second in-order queue, for kernels that wait for other devices or move rows between them. Only
 * events order commands of the two queues. moert_device_use_queue(device, true) selects the second
 * queue for all later commands, and `false` selects the first queue. moert_device_finish waits for
 * both queues.
 *
 * A device has no second queue on a CPU without MOERT_SYNC=device, on the caller's queue, during a
 * recording, and while commands must not overlap (device/profile/profile.h). In these cases all
 * commands go to the first queue.
 */
bool moert_device_has_second_queue(const moert_device *device);
moert_status moert_device_use_queue(moert_device *device, bool aside);

/* ---- events ---- */

/* An event that completes when all commands enqueued before it, on the queue in use, have ended. */
typedef struct moert_event moert_event;
moert_status moert_event_record(moert_device *device, moert_event **event);
/* Blocks until the event completes. ERROR_DEVICE if a command has failed. */
moert_status moert_event_wait(const moert_event *event);
/* *passed = whether the event has completed; ERROR_DEVICE if a command has failed. */
moert_status moert_event_test(const moert_event *event, bool *passed);
/* Commands enqueued later on the queue in use start after the event has completed. The event may be
 * of the other queue. */
moert_status moert_event_follow(const moert_event *event);
void moert_event_free(moert_event *event); /* NULL is legal */

/* ---- for the other files of src/device ---- */

/* Opens a new queue as the queue in use, and releases the previous one. With `profiles`, events of
 * the new queue have times. */
moert_status moert_queue_open(moert_device *device, bool profiles);
/* Waits for both queues. Returns CL_SUCCESS or an error of OpenCL. */
int moert_queue_finish(moert_device *device);
/* Releases the queue that is not in use; its commands must have ended. */
void moert_queue_release_other(moert_device *device);
