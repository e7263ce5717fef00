/* Measures the rate of repeated calls on a device. */
#pragma once

#include "tools/common/rates.h"

/*
 * *tflops = the median rate of three samples of call(what), which enqueues `flops` on the device. A
 * sample repeats the call for 25 ms without timing it, and then for 50 ms with timing. Blocking.
 */
moert_status bench_rate(moert_device *device, moert_status (*call)(void *), void *what,
                        double flops, double *tflops);
