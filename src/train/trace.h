/*
 * A trace of some steps for chrome://tracing or Perfetto. Each rank has five rows: steps, kernels
 * of its device, waits in MPI, and two rows for token rows of the staged exchange in flight (to
 * their experts, and back). Times are in microseconds since all ranks left a barrier. So the clocks
 * of ranks on several hosts differ by at most the duration of that barrier.
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
    char *temporary; /* temporary name of rank 0's file, until the file is complete */
    FILE *file;      /* the open file, on rank 0 */
} moert_trace;

/* Starts a trace. Rank 0 opens PATH.tmp. The device's profile must be enabled, but not be between
 * moert_profile_begin and moert_profile_end. Collective; all ranks return the same status. Errors:
 * ERROR_IO, ERROR_MEMORY, ERROR_COMM. */
moert_status moert_trace_start(moert_trace *trace, moert_device *device, moert_comm *world,
                               const char *path);
/* Removes the file if it is not finished. moert_trace_close is legal also if moert_trace_start has
 * failed or was not called. */
void moert_trace_close(moert_trace *trace);

/* Records a step that lasted from start_ns to end_ns, by moert_clock_ns(). After MOERT_TRACE_STEPS
 * steps, the trace records no more spans. */
void moert_trace_step(moert_trace *trace, uint64_t step, uint64_t start_ns, uint64_t end_ns);

/* Rank 0 writes the spans of all ranks to `path`. Call this function once. Collective. Errors:
 * those of moert_trace_start. */
moert_status moert_trace_write(moert_trace *trace);
