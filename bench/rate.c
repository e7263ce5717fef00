/* Times calls in a row. */
#include "rate.h"

#include <stdlib.h>

#include "base/clock.h"

enum { SAMPLES = 3 };
#define WARM_S  0.025
#define TIMED_S 0.05

static moert_status run_for(moert_device *device, moert_status (*call)(void *), void *what,
                            size_t calls, double *seconds) {
    const uint64_t start = moert_clock_ns();
    for (size_t i = 0; i < calls; i++)
        MOERT_TRY(call(what));
    MOERT_TRY(moert_device_finish(device));
    *seconds = (double)(moert_clock_ns() - start) * 1e-9;
    return MOERT_OK;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

moert_status bench_rate(moert_device *device, moert_status (*call)(void *), void *what,
                        double flops, double *tflops) {
    double one = 0.0, seconds = 0.0, samples[SAMPLES];
    MOERT_TRY(run_for(device, call, what, 1, &one));
    for (size_t i = 0; i < SAMPLES; i++) {
        const size_t calls = (size_t)(TIMED_S / one) + 1;
        MOERT_TRY(run_for(device, call, what, (size_t)(WARM_S / one) + 1, &seconds));
        MOERT_TRY(run_for(device, call, what, calls, &seconds));
        samples[i] = flops * (double)calls / seconds / 1e12;
    }
    qsort(samples, SAMPLES, sizeof samples[0], by_size);
    *tflops = samples[SAMPLES / 2];
    return MOERT_OK;
}
