/* Computes the learning rate of each step of a run. */
#include "train/schedule.h"

#include <stdio.h>

#include "base/elementary.h"

double moert_schedule_rate(const moert_schedule *schedule, uint64_t step, uint64_t total) {
    const double pi = 3.141592653589793;
    uint64_t begin = schedule->warmup; /* first step of the decay */
    if (step < schedule->warmup)
        return schedule->rate * (double)(step + 1) / (double)schedule->warmup;
    if (schedule->decay > 0 && total > begin + schedule->decay)
        begin = total - schedule->decay;
    if (schedule->kind == MOERT_SCHEDULE_CONSTANT || step < begin)
        return schedule->rate;
    double floor_rate = schedule->rate * schedule->floor_fraction;
    if (step >= total)
        return floor_rate;
    const double progress = (double)(step - begin) / (double)(total - begin);
    const double left = schedule->kind == MOERT_SCHEDULE_LINEAR
                            ? 1.0 - progress
                            : 0.5 * (1.0 + moert_cos(pi * progress));
    return floor_rate + (schedule->rate - floor_rate) * left;
}

void moert_schedule_text(const moert_schedule *schedule, char text[MOERT_SCHEDULE_TEXT_BYTES]) {
    static const char *const names[] = {"constant", "cosine", "linear"};
    snprintf(text, MOERT_SCHEDULE_TEXT_BYTES,
             "--lr %.9g --lr-schedule %s --lr-floor %.9g --warmup %zu --lr-decay %zu",
             schedule->rate, names[schedule->kind], schedule->floor_fraction, schedule->warmup,
             schedule->decay);
}
