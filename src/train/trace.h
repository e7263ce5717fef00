/*
 * A trace of some steps for chrome://tracing or Perfetto. Each rank has five rows: steps, kernels
 * of its device, waits in MPI, and rows of the staged exchange in flight, to their experts and
 * back. Times are microseconds since all ranks left a barrier. So times of ranks on several hosts
 * differ by at most the length of that barrier.
 */
#pragma once

#include <stdio.h>

#include "comm/comm.h"
#include "device/profile/profile.h"

enum { MOERT_TRACE_STEPS = 5 };

typedef struct moert_trace {
    moert_device *device; /* NULL: not started */
    moert_comm *world;
    uint64_t zero_ns;
    size_t steps;
    struct moert_trace_event *events; /* [count] */
    size_t count, room;
    bool full; /* an event was lost for lack of memory */
    const char *path;
    char *temporary; /* name of rank 0's file until it is complete */
    FILE *file;      /* the open file, on rank 0 */
} moert_trace;

/* Starts a trace; rank 0 opens PATH.tmp. The device's profile must be enabled and not be counting.
 * Collective. Errors, on all ranks alike: ERROR_IO, ERROR_MEMORY, ERROR_COMM. */
moert_status moert_trace_start(moert_trace *trace, moert_device *device, moert_comm *world,
                               const char *path);
/* Removes an unfinished file. Legal also if moert_trace_start has failed or was not called. */
void moert_trace_close(moert_trace *trace);

/* Records a step from start_ns to end_ns of moert_clock_ns(). After MOERT_TRACE_STEPS steps the
 * trace records no more spans. */
void moert_trace_step(moert_trace *trace, uint64_t step, uint64_t start_ns, uint64_t end_ns);

/* Rank 0 writes the spans of all ranks to `path`. Call it once. Collective. Errors: those of
 * moert_trace_start. */
moert_status moert_trace_write(moert_trace *trace);
