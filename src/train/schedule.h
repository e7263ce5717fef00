/* The learning rate over a run: linear warm-up, then constant, then a decay to a floor. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct moert_schedule {
    enum { MOERT_SCHEDULE_CONSTANT, MOERT_SCHEDULE_COSINE, MOERT_SCHEDULE_LINEAR } kind;
    double rate;           /* learning rate at the end of the warm-up */
    double floor_fraction; /* the decay ends at rate * floor_fraction */
    size_t warmup;         /* steps */
    /* number of steps of the decay, which are the run's last steps; 0 = all steps after the
     * warm-up */
    size_t decay;
} moert_schedule;

/*
 * The learning rate of step 0, 1, ... of `total` steps. Warm-up: rate * (step + 1) / warmup. After
 * the warm-up: `rate`. Cosine and linear decay: from `rate` at the first step of the decay to the
 * floor at step == total, which follows the last step. Later steps have the floor.
 */
double moert_schedule_rate(const moert_schedule *schedule, uint64_t step, uint64_t total);

/* Describes a schedule in the words of the options, without the number of steps. */
enum { MOERT_SCHEDULE_TEXT_BYTES = 128 };
void moert_schedule_text(const moert_schedule *schedule, char text[MOERT_SCHEDULE_TEXT_BYTES]);
