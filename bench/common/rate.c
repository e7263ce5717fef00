/* Times consecutive calls. */
#include "bench/common/rate.h"

enum { SAMPLES = 3 };
#define WARM_S  0.025
#define TIMED_S 0.05

moert_status bench_rate(moert_device *device, moert_status (*call)(void *), void *what,
                        double flops, double *tflops) {
    const moert_timed timed = {.device = device, .run = call, .what = what};
    double one = 0.0, seconds = 0.0, samples[SAMPLES];
    MOERT_TRY(moert_rates_sample(&timed, 1, &one));
    for (size_t i = 0; i < SAMPLES; i++) {
        MOERT_TRY(moert_rates_sample(&timed, (size_t)(WARM_S / one) + 1, &seconds));
        MOERT_TRY(moert_rates_sample(&timed, (size_t)(TIMED_S / one) + 1, &seconds));
        samples[i] = flops / seconds / 1e12;
    }
    *tflops = moert_rates_median(samples, SAMPLES);
    return MOERT_OK;
}
