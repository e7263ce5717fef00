/* The rate of work that is repeated. */
#pragma once

#include "tools/common/rates.h"

/*
 * *tflops = the median rate of three samples of call(what), which enqueues `flops` on the device. A
 * sample repeats the call for 25 ms, not counted, and then for 50 ms. Blocks.
 */
moert_status bench_rate(moert_device *device, moert_status (*call)(void *), void *what,
                        double flops, double *tflops);
