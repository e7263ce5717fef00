/* Which implementation of the operations serves a device: MOERT_BACKEND, or the best one. Choices
 * are MOERT_BACKEND_REFERENCE and so on, of base/config.h. */
#ifndef MOERT_DEVICE_BACKEND_H
#define MOERT_DEVICE_BACKEND_H

#include "base/config.h"
#include "device/device.h"

#define MOERT_NVIDIA_TAKES "GPUs of compute capability 8.0 and later"
bool moert_has_tensor_cores(const moert_device *device); /* those that the nvidia backend takes */

/* The choice in use, and that of `auto`; a device of NULL has no tensor cores. */
unsigned moert_backend_choice(const moert_device *device);
unsigned moert_backend_automatic(const moert_device *device);

/* ERROR_UNSUPPORTED if MOERT_BACKEND names one that is not for this device. GEMMs and packed
 * weights check it themselves. */
moert_status moert_backend_check(const moert_device *device);

#endif
