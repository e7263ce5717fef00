/*
 * Where the time of training steps goes: a table at the end of a run, and the same as JSON.
 *
 * Times and work are means over the ranks, so that the rows, with what no kernel and no message
 * explains as "host", add up to the wall time of a step; a rank that waits for another shows in
 * the rows of messages. Rates stand beside what the device reaches at best (roofs).
 */
#pragma once

#include <stdio.h>

#include "comm/comm.h"
#include "device/profile/profile.h"

/* Steps that are left out first, since they compile and touch memory for the first time. */
enum { MOERT_BREAKDOWN_SKIPS = 2 };

typedef struct moert_breakdown {
    moert_roof roof;
    uint64_t from;  /* the first step that counts */
    uint64_t steps; /* that have counted */
} moert_breakdown;

/* The first of steps [first, end) that counts: at least the last one does. */
uint64_t moert_breakdown_from(uint64_t first, uint64_t end);

/* Prepares the device and measures its roofs, for steps [first, end). Collective. Errors:
 * ERROR_UNSUPPORTED, ERROR_DEVICE, ERROR_MEMORY. */
moert_status moert_breakdown_start(moert_device *device, moert_comm *world, uint64_t first,
                                   uint64_t end, moert_breakdown *breakdown);

/* Makes the times of a rank's operations, ns[MOERT_OPERATIONS], fit into their wall time, and
 * returns what is left of it, the host's: a wait that overlaps a kernel counts as the kernel. */
double moert_breakdown_fit(double *ns, double wall_ns);

/*
 * Rank 0 prints the table and, unless `path` is NULL, writes it there: {"steps", "ranks",
 * "fma_peak_gflops", "copy_roof_gbps", "ms_per_step", "gemm_share", "rows": [{"name", "calls",
 * "ms_per_step", "share", "gflops", "peak_share", "gbps", "copy_share"}], "flight_ms_per_step"},
 * shares as parts of 1, rates null where they say nothing; "flight" is the time in which rows were
 * under way in the staged exchange, hidden behind other rows of the table or waited for. Without
 * steps: nothing. Collective. Errors: ERROR_IO, ERROR_MEMORY.
 */
moert_status moert_breakdown_report(const moert_device *device, moert_comm *world,
                                    const moert_breakdown *breakdown, FILE *console,
                                    const char *path);
