/* The learning rate over a run: linear warm-up, then constant, then a decay to a floor. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct moert_schedule {
    enum { MOERT_SCHEDULE_CONSTANT, MOERT_SCHEDULE_COSINE, MOERT_SCHEDULE_LINEAR } kind;
    double rate;           /* learning rate at the end of the warm-up */
    double floor_fraction; /* the decay ends at rate * floor_fraction */
    size_t warmup;         /* steps */
    size_t decay;          /* steps of the decay, the run's last ones; 0 = all after the warm-up */
} moert_schedule;

/*
 * The rate of step 0, 1, ... of `total`. Warm-up: rate * (step + 1) / warmup. Then `rate`. Cosine
 * and linear: from `rate` at the first step of the decay to the floor at step == total, one past
 * the last step; then the floor.
 */
double moert_schedule_rate(const moert_schedule *schedule, uint64_t step, uint64_t total);

/* Describes a schedule, without the number of steps, in the options' words. */
enum { MOERT_SCHEDULE_TEXT_BYTES = 128 };
void moert_schedule_text(const moert_schedule *schedule, char text[MOERT_SCHEDULE_TEXT_BYTES]);
