/* The learning rate over a run: linear warm-up, then constant or a cosine down to a floor. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct moert_schedule {
    enum { MOERT_SCHEDULE_CONSTANT, MOERT_SCHEDULE_COSINE } kind;
    double rate;           /* at the end of the warm-up */
    double floor_fraction; /* the cosine ends at rate * floor_fraction */
    size_t warmup;         /* steps */
} moert_schedule;

/*
 * The rate of step 0, 1, ... of `total`. Warm-up: rate * (step + 1) / warmup. Cosine: from `rate`
 * at step == warmup to the floor at step == total, one past the last step; then the floor.
 */
double moert_schedule_rate(const moert_schedule *schedule, uint64_t step, uint64_t total);
