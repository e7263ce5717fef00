/* Rates of repeated work, medians of samples, and values over all ranks. */
#pragma once

#include "comm/comm.h"
#include "device/device.h"
#include "moert/ops.h"

/* Returns the median of the samples, and sorts them. */
double bench_median(double *samples, size_t count);

/* *seconds = time of `calls` calls in a row of call(what), which enqueues work. Blocks. */
moert_status bench_time_calls(moert_device *device, moert_status (*call)(void *), void *what,
                              size_t calls, double *seconds);
/*
 * *tflops = the median rate of three samples of call(what), which enqueues `flops` on the device. A
 * sample repeats the call for 25 ms, not counted, and then for 50 ms. Blocks.
 */
moert_status bench_rate(moert_device *device, moert_status (*call)(void *), void *what,
                        double flops, double *tflops);
/* *tflops = the median rate of moert_op_execute(op, buffers), measured as by bench_rate. */
moert_status bench_rate_op(moert_device *device, moert_op *op, const moert_op_buffers *buffers,
                           double flops, double *tflops);

/* Sum and maximum over the ranks' values `mine`. Collective. */
typedef struct bench_of_ranks {
    double sum, largest;
} bench_of_ranks;
moert_status bench_over_ranks(moert_comm *comm, double mine, bench_of_ranks *of);
