/* Compares two runs in sentences: where their losses part, and how fast they are. */
#pragma once

#include "tools/report/run_record.h"

enum { MOERT_COMPARISON_LINES = 4, MOERT_COMPARISON_BYTES = 400 };

typedef struct moert_comparison {
    size_t count;
    char line[MOERT_COMPARISON_LINES][MOERT_COMPARISON_BYTES];
} moert_comparison;

/* Compares the steps that are in both runs; `name` is that of the other run. */
void moert_comparison_make(const moert_run_record *record, const moert_run_record *other,
                           const char *name, moert_comparison *comparison);
