/* One step of a trace (train/trace.h), drawn: what every rank's device did and when it waited for
 * messages, side by side. */
#pragma once

#include "tools/report/markup.h"
#include "tools/report/run_record.h"

/* In ms since the step began on the first rank. */
typedef struct moert_trace_span {
    size_t rank;
    moert_time time;
    double start, end;
} moert_trace_span;

typedef struct moert_trace_step {
    char name[32];
    double length; /* ms, until the last rank's end; 0 = there is no trace */
    size_t ranks, count;
    moert_trace_span *span; /* [count] */
} moert_trace_step;

/* The last step that a trace file holds. Errors: ERROR_IO, ERROR_FORMAT (JSON, or no step),
 * ERROR_MEMORY. */
moert_status moert_trace_step_read(const char *path, moert_trace_step *step);
void moert_trace_step_free(moert_trace_step *step);

/* A lane for each rank: its device above, messages below. */
void moert_chart_trace(moert_markup *m, const moert_trace_step *step);
