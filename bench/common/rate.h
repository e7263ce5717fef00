/* The rate of work that is done again and again, the median of samples, and values of all ranks. */
#pragma once

#include "comm/comm.h"
#include "device/device.h"
#include "moert/ops.h"

/* Puts the samples in ascending order. */
double bench_median(double *samples, size_t count);

/* *seconds of `calls` calls in a row of call(what), which enqueues work. Blocks. */
moert_status bench_time_calls(moert_device *device, moert_status (*call)(void *), void *what,
                              size_t calls, double *seconds);
/*
 * *tflops = the median rate of three samples of call(what), which enqueues `flops` on the device. A
 * sample is 25 ms of calls in a row, not counted, then 50 ms of calls. Blocks.
 */
moert_status bench_rate(moert_device *device, moert_status (*call)(void *), void *what,
                        double flops, double *tflops);
/* The same of moert_op_execute. */
moert_status bench_rate_op(moert_device *device, moert_op *op, const moert_op_buffers *buffers,
                           double flops, double *tflops);

/* Of the values that the ranks bring. Collective. */
typedef struct bench_of_ranks {
    double sum, largest;
} bench_of_ranks;
moert_status bench_over_ranks(moert_comm *comm, double mine, bench_of_ranks *of);
