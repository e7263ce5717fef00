/* Launches that are recorded once and played any number of times. */
#pragma once

#include <stddef.h>

#include "base/error.h"
#include "device/launch.h"

/*
 * Between start and stop, launches on the device go into the recording instead of the queue, and
 * nothing else may be enqueued. play enqueues the recorded launches, any number of times. The
 * buffers of these launches must outlive the recording. destroy waits for the device; NULL is
 * legal. Errors: ERROR_UNSUPPORTED (the device has no cl_khr_command_buffer), ERROR_DEVICE,
 * ERROR_MEMORY.
 */
typedef struct moert_recording moert_recording;
moert_status moert_recording_start(moert_device *device, moert_recording **recording);
moert_status moert_recording_stop(moert_recording *recording);
moert_status moert_recording_play(moert_recording *recording);
void moert_recording_destroy(moert_recording *recording);

struct moert_kernel;
/* Records a launch, for moert_launch. */
moert_status moert_recording_add(moert_recording *recording, const struct moert_kernel *kernel,
                                 const size_t groups[3], const moert_argument *arguments);
