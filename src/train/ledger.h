/*
 * What every rank did in each profiled step, for moert-report: times, who waited for whom, bytes
 * from rank to rank, rows of every expert. In two files of the run's folder:
 *
 * profile-steps.jsonl, a line a step, written through at once; arrays have a number for each rank,
 * those of rows one for each layer:
 *   {"step", "step_ms": [], "waited_ms": [], "operations": {NAME: [], ..., "host": []},
 *    "rows": {"min": [], "mean": [], "max": []}}
 * Operations are those of device/profile/profile.h that took time, in ms; with "host" they add up
 * to step_ms. Waited is what of them was spent in messages until the last of the others came.
 *
 * profile-ranks.json, at the end, means over the steps; row = this rank, column = the other one:
 *   {"steps", "engine", "group", "ranks": [{"host", "node"}], "waited_ms": [[]],
 * "dispatched_bytes": [[]], "combined_bytes": [[]], "expert_rows": [[]]} group: ranks that share
 * one set of experts, in blocks; waited_ms: how long the row's rank waited for the column's; bytes:
 * from the row's rank to the column's; expert_rows: [layer][expert].
 */
#pragma once

#include "model/model.h"

typedef struct moert_ledger moert_ledger;

/* Removes what an older run has written there, its profile.json too. Not collective. Errors:
 * ERROR_IO, ERROR_MEMORY. */
moert_status moert_ledger_clear(const char *out);

/* Opens both in folder `out`; the device's profile must be enabled. Collective. Errors: ERROR_IO,
 * ERROR_MEMORY, ERROR_COMM. */
moert_status moert_ledger_open(moert_model *model, const char *out, moert_ledger **ledger);
/* NULL is legal, here and below: nothing is kept. */
void moert_ledger_destroy(moert_ledger *ledger);

/* A step begins: all ranks between the same two messages. Not collective. */
void moert_ledger_begin(moert_ledger *ledger);
/* Adds the experts' rows of the model's last loss. Not collective. */
void moert_ledger_count(moert_ledger *ledger);
/* The step ends, and so has the profile of its span. Collective. Errors: ERROR_IO, ERROR_MEMORY,
 * ERROR_COMM. */
moert_status moert_ledger_end(moert_ledger *ledger, uint64_t step);

/* Writes profile-ranks.json. Collective. Errors as above. */
moert_status moert_ledger_write(moert_ledger *ledger);
