/*
 * Records every rank's profiled steps for moert-report: times, which rank waited for which, bytes
 * from rank to rank, rows of every expert. It writes two files to the run directory:
 *
 * profile-steps.jsonl has one line per step, flushed at once. Arrays have one number per rank,
 * those of "rows" one per layer:
 *   {"step", "step_ms": [], "waited_ms": [], "operations": {NAME: [], ..., "host": []},
 *    "rows": {"min": [], "mean": [], "max": []}}
 * Operations are those of device/profile/profile.h that took time, in ms. With "host" they add up
 * to step_ms. waited_ms is the part of them in which the rank waited for other ranks to enter a
 * call.
 *
 * profile-ranks.json is written at the end and has means over the steps:
 *   {"steps", "engine", "group", "ranks": [{"host", "node"}], "waited_ms": [[]],
 *    "dispatched_bytes": [[]], "combined_bytes": [[]], "expert_rows": [[]], "expert_ranks": [[]]}
 * group: the number of ranks that share one set of experts, in consecutive blocks. waited_ms: the
 * time for which the row's rank waited for the column's. Bytes go from the row's rank to the
 * column's. expert_rows: [layer][expert]; expert_ranks: the rank of the group that holds the
 * expert at the end.
 */
#pragma once

#include "model/model.h"

typedef struct moert_ledger moert_ledger;

/* Removes the files of an older run from the run directory `out`, with its profile.json. Not
 * collective. Errors: ERROR_IO, ERROR_MEMORY. */
moert_status moert_ledger_clear(const char *out);

/* Opens a ledger in directory `out`. The device's profile must be enabled. Collective. Errors:
 * ERROR_IO, ERROR_MEMORY, ERROR_COMM. */
moert_status moert_ledger_open(moert_run *run, const char *out, moert_ledger **ledger);
/* NULL is legal, here and below: the calls do nothing. */
void moert_ledger_destroy(moert_ledger *ledger);

/* Begins a step. All ranks call it between the same two collective calls. Not collective. */
void moert_ledger_begin(moert_ledger *ledger);
/* Adds the experts' rows of the run's last loss. Not collective. */
void moert_ledger_count(moert_ledger *ledger);
/* Ends the step, after moert_profile_end. Collective. Errors: ERROR_IO, ERROR_MEMORY,
 * ERROR_COMM. */
moert_status moert_ledger_end(moert_ledger *ledger, uint64_t step);

/* Writes profile-ranks.json. Collective. Errors: ERROR_IO, ERROR_MEMORY, ERROR_COMM. */
moert_status moert_ledger_write(moert_ledger *ledger);
