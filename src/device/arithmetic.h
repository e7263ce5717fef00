/* Compares a device's arithmetic with the host's. */
#pragma once

#include "base/error.h"
#include "moert/device.h"

/*
 * Compares the device's arithmetic with the host's, by a sample of operations and sums that takes
 * less than a millisecond. *difference = the reason why digits on the device may differ from those
 * on a CPU with another driver; "" if they are the same. The caller frees *difference. The cache
 * keeps the result with the compiled kernels. Errors: those of moert_launch, ERROR_MEMORY.
 */
moert_status moert_device_difference(const moert_device *device, char **difference);
