/* Draws one step of a trace (train/trace.h): what every rank's device did, and when the rank waited
 * for messages. */
#pragma once

#include "tools/report/markup.h"
#include "tools/report/run_record.h"

/* `start` and `end` in ms since the first rank began the step. */
typedef struct moert_trace_span {
    size_t rank;
    moert_time time;
    double start, end;
} moert_trace_span;

typedef struct moert_trace_step {
    char name[32];
    double length; /* ms from the first rank's start to the last rank's end; 0 = no trace */
    size_t ranks, count;
    moert_trace_span *span; /* [count] */
} moert_trace_step;

/* Reads the last step of a trace file. Errors: ERROR_IO, ERROR_FORMAT (not JSON, or no step),
 * ERROR_MEMORY. */
moert_status moert_trace_step_read(const char *path, moert_trace_step *step);
void moert_trace_step_free(moert_trace_step *step);

/* Draws a lane for each rank: its device above, messages below. */
void moert_chart_trace(moert_markup *m, const moert_trace_step *step);
