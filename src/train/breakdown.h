/*
 * Where the time of training steps goes: a table at the end of a run, and the same as JSON.
 *
 * Times and work are means over the ranks. The row "host" has the time outside kernels and
 * messages, so that all rows add up to the wall time of a step. The time in which a rank waits for
 * another is in the rows of messages. The table compares rates with the best that the device
 * reaches: multiply-adds in float32, or GEMMs of bf16 where operands are bf16, and copies.
 */
#pragma once

#include <stdio.h>

#include "comm/comm.h"
#include "device/profile/profile.h"

/* The number of first steps that do not count, since they compile kernels and touch memory for the
 * first time. */
enum { MOERT_BREAKDOWN_SKIPS = 2 };

typedef struct moert_breakdown {
    moert_roof roof;
    uint64_t from;  /* the first step that counts */
    uint64_t steps; /* the number of steps counted so far */
} moert_breakdown;

/* Measures the device's peak rates, with `bf16` also that of bf16 GEMMs. The memory that this takes
 * does not raise the device's recorded peak. Collective: ranks that share a device, or its memory,
 * measure at the same time, so each gets its part. */
moert_status moert_peaks_measure(moert_device *device, moert_comm *world, bool bf16,
                                 moert_roof *roof);

/* Returns the first of steps [first, end) that counts. The last step always counts. */
uint64_t moert_breakdown_from(uint64_t first, uint64_t end);

/* Enables the profile of the device and measures its peaks, for a run of steps [first, end).
 * Collective. Errors: ERROR_UNSUPPORTED, ERROR_DEVICE, ERROR_MEMORY. */
moert_status moert_breakdown_start(moert_device *device, moert_comm *world, bool bf16,
                                   uint64_t first, uint64_t end, moert_breakdown *breakdown);

/*
 * Rank 0 prints the table and, unless `out` is NULL, writes OUT/profile.json: {"steps", "ranks",
 * "fma_peak_gflops", "bf16_peak_gflops", "copy_roof_gbps", "ms_per_step", "gemm_share",
 * "rows": [{"name", "calls", "ms_per_step", "share", "gflops", "peak_share", "gbps",
 * "copy_share"}], "flight_ms_per_step"}.
 * Shares are fractions of 1. Rates without work or time are null. "flight" is the time in which
 * rows of the staged exchange were in flight, whether hidden behind other rows of the table or
 * waited for. Does nothing if no step counted. Collective. Errors: ERROR_IO, ERROR_MEMORY.
 */
moert_status moert_breakdown_report(const moert_device *device, moert_comm *world,
                                    const moert_breakdown *breakdown, FILE *console,
                                    const char *out);
