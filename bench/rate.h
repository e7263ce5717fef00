/* The rate of work that is done again and again, for the benches without a rival in the process. */
#ifndef BENCH_RATE_H
#define BENCH_RATE_H

#include "device/device.h"

/*
 * *tflops = the median rate of three samples of call(what), which enqueues `flops` on the device. A
 * sample is 25 ms of calls in a row, not counted, then 50 ms of calls. Blocks.
 */
moert_status bench_rate(moert_device *device, moert_status (*call)(void *), void *what,
                        double flops, double *tflops);

#endif
