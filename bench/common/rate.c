/* Times calls in a row. */
#include "bench/common/rate.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/dtype.h"

enum { SAMPLES = 3 };
#define WARM_S  0.025
#define TIMED_S 0.05

moert_status bench_time_calls(moert_device *device, moert_status (*call)(void *), void *what,
                              size_t calls, double *seconds) {
    const uint64_t start = moert_clock_ns();
    for (size_t i = 0; i < calls; i++)
        MOERT_TRY(call(what));
    MOERT_TRY(moert_device_finish(device));
    *seconds = (double)(moert_clock_ns() - start) * 1e-9;
    return MOERT_OK;
}

double bench_median(double *samples, size_t count) {
    moert_sort_numbers(samples, count);
    return 0.5 * (samples[(count - 1) / 2] + samples[count / 2]);
}

moert_status bench_rate(moert_device *device, moert_status (*call)(void *), void *what,
                        double flops, double *tflops) {
    double one = 0.0, seconds = 0.0, samples[SAMPLES];
    MOERT_TRY(bench_time_calls(device, call, what, 1, &one));
    for (size_t i = 0; i < SAMPLES; i++) {
        const size_t calls = (size_t)(TIMED_S / one) + 1;
        MOERT_TRY(bench_time_calls(device, call, what, (size_t)(WARM_S / one) + 1, &seconds));
        MOERT_TRY(bench_time_calls(device, call, what, calls, &seconds));
        samples[i] = flops * (double)calls / seconds / 1e12;
    }
    *tflops = bench_median(samples, SAMPLES);
    return MOERT_OK;
}

/* An op and its operands. */
typedef struct timed {
    moert_op *op;
    const moert_op_buffers *buffers;
} timed;

static moert_status execute(void *what) {
    const timed *t = what;
    return moert_op_execute(t->op, t->buffers);
}

moert_status bench_rate_op(moert_device *device, moert_op *op, const moert_op_buffers *buffers,
                           double flops, double *tflops) {
    timed t = {op, buffers};
    return bench_rate(device, execute, &t, flops, tflops);
}

moert_status bench_over_ranks(moert_comm *comm, double mine, bench_of_ranks *of) {
    const size_t ranks = moert_comm_size(comm);
    double *all;
    MOERT_TRY(MOERT_NEW_ARRAY(&all, ranks));
    const moert_status status = moert_comm_allgather(comm, &mine, sizeof mine, all);
    *of = (bench_of_ranks){0.0, all[0]};
    for (size_t r = 0; r < ranks; r++) {
        of->sum += all[r];
        of->largest = fmax(of->largest, all[r]);
    }
    free(all);
    return status;
}
