/* Compute units that are reserved for other kernels and later help with the work of persistent
 * kernels. */
#pragma once

#include <stddef.h>

#include "base/error.h"
#include "moert/device.h"

/*
 * moert_device_reserve_units reserves `units` compute units. Persistent kernels launched later use
 * the rest, moert_device_units() of them.
 *
 * moert_device_share launches a persistent kernel by run(work, units, counts). `counts` are two
 * uint32 on the device, 0 at first: counters from which the kernel's work-groups take tiles.
 * moert_device_run_shared launches the kernel once more, on the queue in use and on the reserved
 * units, with the same `counts`. The kernel's work must be complete when its first launch ends.
 * Without reserved units, or if MOERT_MOST_SHARED_WORKS kernels are already shared, `run` is called
 * once, with counts NULL.
 */
enum { MOERT_MOST_SHARED_WORKS = 4 };
typedef moert_status (*moert_work)(const void *work, unsigned units, moert_buffer *counts);
void moert_device_reserve_units(moert_device *device, unsigned units);
unsigned moert_device_units(const moert_device *device);
/* Copies work[bytes]. Errors: those of `run`, ERROR_MEMORY, ERROR_DEVICE. */
moert_status moert_device_share(moert_device *device, moert_work run, const void *work,
                                size_t bytes);
/* Launches again all work that was shared since moert_device_reserve_units. */
moert_status moert_device_run_shared(moert_device *device);

/* Frees the data of the device's shared kernels when the device is closed. */
void moert_shared_work_release(moert_device *device);
