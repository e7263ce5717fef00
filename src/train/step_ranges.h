/* Ranges of steps, which options name. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { MOERT_STEP_RANGES_MOST = 64 };

/* Steps [first, end). */
typedef struct moert_step_range {
    uint64_t first, end;
} moert_step_range;

/* Ranges in ascending order, which do not overlap. */
typedef struct moert_step_ranges {
    size_t count;
    moert_step_range range[MOERT_STEP_RANGES_MOST];
} moert_step_ranges;

/* Reads a number, and moves *at behind its digits. Returns false if there are no digits, or more
 * than 15. */
bool moert_step_read(const char **at, uint64_t *step);
/* Reads "A:B", or several such ranges with commas between them. Errors: ERROR_USAGE. */
moert_status moert_step_ranges_read(const char *text, moert_step_ranges *ranges);
/* Reads "STEP", a range of one step, or "STEP:COUNT". Errors: ERROR_USAGE. */
moert_status moert_step_range_read(const char *text, moert_step_range *range);

bool moert_step_ranges_have(const moert_step_ranges *ranges, uint64_t step);
/* The number of steps in the ranges that are below `step`. */
uint64_t moert_step_ranges_below(const moert_step_ranges *ranges, uint64_t step);
