/* The learning rate over a run. */
#include "train/schedule.h"

#include "base/elementary.h"

double moert_schedule_rate(const moert_schedule *schedule, uint64_t step, uint64_t total) {
    const double pi = 3.141592653589793;
    if (step < schedule->warmup)
        return schedule->rate * (double)(step + 1) / (double)schedule->warmup;
    if (schedule->kind == MOERT_SCHEDULE_CONSTANT)
        return schedule->rate;
    double floor_rate = schedule->rate * schedule->floor_fraction;
    if (step >= total)
        return floor_rate;
    double progress = (double)(step - schedule->warmup) / (double)(total - schedule->warmup);
    return floor_rate + (schedule->rate - floor_rate) * 0.5 * (1.0 + moert_cos(pi * progress));
}
