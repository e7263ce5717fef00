/* Reads one step of a trace (train/trace.h): the work of each rank's device, the times when the
 * rank waited for messages, and the times when rows were in flight. */
#pragma once

#include "tools/report/run_record.h"

/*
 * *step = the last step of a trace file, as {"name", "length", "ranks", "spans":[[rank, row, class,
 * start, end]]}, for the caller to json_decref. The rows are defined in train/trace.h, the classes
 * in MOERT_TIME_TABLE. Times are in ms since the first rank began the step. A span is joined to the
 * previous span of its row if the gap between the two spans is tiny, and if the two spans have the
 * same class or the later span is tiny. Errors: ERROR_IO, ERROR_FORMAT (not JSON, or no step),
 * ERROR_MEMORY.
 */
moert_status moert_trace_step_read(const char *path, json_t **step);
