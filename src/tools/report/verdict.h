/* Sums up a run in sentences: how fast it is, what bounds a step, which rank the others wait for,
 * which expert is hot. */
#pragma once

#include "tools/report/run_record.h"

/* A rank is late if the others wait for it at least this fraction of a step, and wait for every
 * other rank at most half as long. */
#define MOERT_LATE_FRACTION 0.10
/* An expert is hot if it has at least this multiple of the mean rows of its layer's experts. */
#define MOERT_HOT_TIMES 2.0
/* Steps are uneven if their mean time exceeds this multiple of the median. */
#define MOERT_UNEVEN 1.3

enum { MOERT_VERDICT_LINES = 8, MOERT_VERDICT_BYTES = 400 };

typedef struct moert_verdict {
    char headline[MOERT_VERDICT_BYTES];
    size_t count;
    struct {
        bool warns;
        char text[MOERT_VERDICT_BYTES];
    } line[MOERT_VERDICT_LINES];
    size_t late_rank; /* SIZE_MAX = none */
} moert_verdict;

void moert_verdict_make(const moert_run_record *record, moert_verdict *verdict);

/* The median of tokens per second, and the mean of the MFU, over the last half of the steps; 0: the
 * run was not watched. */
double moert_median_speed(const moert_run_record *record);
double moert_mean_mfu(const moert_run_record *record);

/* Mean time that another rank waits for `rank` in a step, in ms; 0 if unknown. */
double moert_waited_for(const moert_run_record *record, size_t rank);
/* The rows of all experts of a layer; the rows of one expert as a multiple of the mean. */
double moert_layer_rows(const moert_run_record *record, size_t layer);
double moert_expert_times(const moert_run_record *record, size_t layer, size_t expert);

/* The mean time of a step over all ranks, in ms; the part of one class of operations. */
double moert_mean_step(const moert_run_record *record);
double moert_mean_time(const moert_run_record *record, moert_time time);
