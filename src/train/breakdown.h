/*
 * Shows where the time of training steps goes: as a table at the end of a run, and as JSON.
 *
 * Times and work are means over the ranks. The row "host" has the time outside kernels and
 * messages, so that all rows add up to the wall time of a step. The time for which a rank waits for
 * another rank is part of the rows of messages. The table compares rates with the device's measured
 * peaks: multiply-adds in float32, GEMMs of bf16 (where operands are bf16), and copies.
 */
#pragma once

#include <stdio.h>

#include "comm/comm.h"
#include "device/profile/profile.h"

/* Number of first steps that the breakdown leaves out, because they compile kernels and touch
 * memory for the first time. */
enum { MOERT_BREAKDOWN_SKIPS = 2 };

typedef struct moert_breakdown {
    moert_roof roof;
    uint64_t from;  /* first step that the breakdown includes */
    uint64_t steps; /* number of steps included so far */
} moert_breakdown;

/* Measures the device's peak rates; with `bf16`, also the peak of bf16 GEMMs. The memory for this
 * does not raise the recorded peak of the device's memory. Collective: ranks that share a device,
 * or its memory, measure at the same time, so each gets its part of the peak. */
moert_status moert_peaks_measure(moert_device *device, moert_comm *world, bool bf16,
                                 moert_roof *roof);

/* Returns the first of steps [first, end) that the breakdown includes. The last step is always
 * included. */
uint64_t moert_breakdown_from(uint64_t first, uint64_t end);

/* Enables the device's profile and measures its peak rates, for a run of steps [first, end).
 * Collective. Errors: ERROR_UNSUPPORTED, ERROR_DEVICE, ERROR_MEMORY. */
moert_status moert_breakdown_start(moert_device *device, moert_comm *world, bool bf16,
                                   uint64_t first, uint64_t end, moert_breakdown *breakdown);

/*
 * Rank 0 prints the table and, unless `out` is NULL, writes OUT/profile.json: {"steps", "ranks",
 * "fma_peak_gflops", "bf16_peak_gflops", "copy_roof_gbps", "ms_per_step", "gemm_share",
 * "rows":[{"name", "calls", "ms_per_step", "share", "gflops", "peak_share", "gbps", "copy_share"}],
 * "flight_ms_per_step"}. Shares are fractions of 1. Rates without work or time are null.
 * flight_ms_per_step is the time in which rows of the staged exchange were in flight, overlapped
 * with other work or not. Does nothing if no step was included. Collective. Errors: ERROR_IO,
 * ERROR_MEMORY.
 */
moert_status moert_breakdown_report(const moert_device *device, moert_comm *world,
                                    const moert_breakdown *breakdown, FILE *console,
                                    const char *out);
