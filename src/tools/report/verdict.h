/* Summarizes a run in sentences: its speed, what limits a step, the rank that the other ranks wait
 * for, the hot experts, and the step at which the losses of two runs begin to differ. */
#pragma once

#include "tools/report/run_record.h"

/* A rank is late if the other ranks wait for it for at least this fraction of a step, and wait at
 * most half as long for every other rank. */
#define MOERT_LATE_FRACTION 0.10
/* An expert is hot if its number of rows is at least this multiple of the mean of its layer's
 * experts. */
#define MOERT_HOT_TIMES 2.0
/* Steps are uneven if their mean time exceeds this multiple of the median. */
#define MOERT_UNEVEN 1.3
/*
 * The report says at which step held-out and training loss part: at the lowest held-out loss. At
 * least MOERT_PART_LATER evaluations must follow this step, and the training loss must later fall
 * by this fraction. The fall compares two means of the training loss: the mean over the steps from
 * the lowest evaluation to the next one, and the mean over the steps between the last two
 * evaluations.
 */
#define MOERT_PART_FALL 0.01

enum { MOERT_PART_LATER = 2, MOERT_VERDICT_LINES = 8, MOERT_VERDICT_BYTES = 400 };

typedef struct moert_verdict {
    char headline[MOERT_VERDICT_BYTES];
    size_t count;
    struct {
        bool warns;
        char text[MOERT_VERDICT_BYTES];
    } line[MOERT_VERDICT_LINES];
    size_t late_rank; /* SIZE_MAX = none */
    /* the step with the lowest held-out loss, after which only the training loss falls; NaN = no
     * such step */
    double parts;
} moert_verdict;

void moert_verdict_make(const moert_run_record *record, moert_verdict *verdict);

/* Compares the steps that both runs have. `name` is the name of the other run. */
void moert_comparison_make(const moert_run_record *record, const moert_run_record *other,
                           const char *name, moert_verdict *comparison);
