/* One step of a trace (train/trace.h): the work of each rank's device, and the times when the rank
 * waited for messages and when rows were in flight. */
#pragma once

#include "tools/report/run_record.h"

/* *step = the last step of a trace file, as {"name", "length", "ranks", "spans": [[rank, row,
 * class, start, end]]}, for the caller to json_decref. Rows are those of train/trace.h, classes
 * those of MOERT_TIME_TABLE, times ms since the first rank began the step. Joins a span to the
 * previous one of its row if the gap is tiny, and the class is the same or the span is tiny.
 * Errors: ERROR_IO, ERROR_FORMAT (not JSON, or no step), ERROR_MEMORY. */
moert_status moert_trace_step_read(const char *path, json_t **step);
