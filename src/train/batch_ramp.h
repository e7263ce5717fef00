/*
 * The number of sequences of each step, over all ranks and micro-batches. With a ramp, the run
 * starts with `start` sequences a step, and every `steps` steps the batch grows by `increment`
 * sequences, until it has `largest` sequences.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct moert_batch_plan {
    size_t largest;
    size_t start, increment, steps; /* all 0: no ramp, and each step has `largest` sequences */
} moert_batch_plan;

/* Reads "START:INCREMENT:STEPS" into the fields of the ramp. Errors: ERROR_USAGE. */
moert_status moert_batch_ramp_read(const char *text, moert_batch_plan *plan);
/* ERROR_USAGE if the ramp starts above `largest`, or does not fit the number of micro-batches. */
moert_status moert_batch_ramp_check(const moert_batch_plan *plan, size_t micro_batches);

static inline bool moert_batch_has_ramp(const moert_batch_plan *plan) {
    return plan->steps > 0;
}

/* Writes "START:INCREMENT:STEPS", or "" without a ramp. */
enum { MOERT_BATCH_RAMP_TEXT_BYTES = 64 };
void moert_batch_ramp_text(const moert_batch_plan *plan, char text[MOERT_BATCH_RAMP_TEXT_BYTES]);

/* The number of sequences of a step, and of all steps before it together. */
size_t moert_batch_at(const moert_batch_plan *plan, uint64_t step);
uint64_t moert_batch_before(const moert_batch_plan *plan, uint64_t step);
