/* Compares a device's arithmetic with the host's. */
#pragma once

#include "base/error.h"
#include "moert/device.h"

/*
 * Compares the device's arithmetic with the host's, by a sample of operations and sums that takes
 * less than a millisecond. *difference = why runs on the device may have other digits than on a CPU
 * with another driver; "" if they have the same. The caller frees it. The cache keeps the result
 * with the compiled kernels. Errors: those of moert_launch, ERROR_MEMORY.
 */
moert_status moert_device_difference(const moert_device *device, char **difference);
