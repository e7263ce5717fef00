/*
 * A trace of some steps for chrome://tracing or Perfetto: what every rank's device did, when its
 * thread waited in MPI, and when rows of the staged exchange were in flight, to their experts and
 * back, one row each, and the steps. Times are microseconds since a barrier that
 * all ranks left together, so that ranks of several hosts compare to within its length.
 */
#pragma once

#include "comm/comm.h"
#include "device/profile/profile.h"

enum { MOERT_TRACE_STEPS = 5 };

typedef struct moert_trace moert_trace;

/* Begins; rank 0 opens PATH.tmp. The device's profile must be enabled and not be counting.
 * Collective. Errors, on all ranks alike: ERROR_IO, ERROR_MEMORY, ERROR_COMM. */
moert_status moert_trace_start(moert_device *device, moert_comm *world, const char *path,
                               moert_trace **trace);
void moert_trace_destroy(moert_trace *trace); /* not written: leaves no file; NULL is legal */

/* A step that has taken from start_ns to end_ns of moert_clock_ns(); the last one that is traced
 * ends the tracing. */
void moert_trace_step(moert_trace *trace, uint64_t step, uint64_t start_ns, uint64_t end_ns);

/* Rank 0 writes the spans of all ranks to `path`. Once. Collective. Errors as above. */
moert_status moert_trace_write(moert_trace *trace);
