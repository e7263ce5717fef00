/* What a run's record says, in words: how fast, what bounds a step, who is waited for, which expert
 * is hot. */
#pragma once

#include "tools/report/run_record.h"

/* A rank is late if the others wait for it this part of a step, and for no other half as long; an
 * expert is hot with so many times its share of a layer's rows; steps are uneven whose mean is so
 * many medians. */
#define MOERT_LATE_SHARE 0.10
#define MOERT_HOT_TIMES  2.0
#define MOERT_UNEVEN     1.3

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

/* Mean time that each other rank waits for `rank` in a step, in ms; 0 where it is not known. */
double moert_waited_for(const moert_run_record *record, size_t rank);
/* Rows of the layer's experts together; how many times its share of them one has. */
double moert_layer_rows(const moert_run_record *record, size_t layer);
double moert_expert_times(const moert_run_record *record, size_t layer, size_t expert);

/* The mean step of all ranks, in ms, and of it one class of times. */
double moert_mean_step(const moert_run_record *record);
double moert_mean_time(const moert_run_record *record, moert_time time);
