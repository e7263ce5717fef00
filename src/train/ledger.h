/*
 * Records every rank's profiled steps for moert-report: times, waits of each rank for each other
 * rank, bytes from rank to rank, and rows of every expert. The ledger writes two files to the run
 * directory:
 *
 * profile-steps.jsonl has one line per step, flushed at once. The arrays of a line have one number
 * per rank, but the arrays in "rows" have one number per layer:
 *   {"step", "step_ms":[], "waited_ms":[], "operations":{NAME:[], ..., "host":[]},
 *    "rows":{"min":[], "mean":[], "max":[]}}
 * The keys of "operations" are operations of device/profile/profile.h that took time, and "host".
 * The values of these keys, in ms, add up to step_ms. waited_ms is the part of step_ms in which the
 * rank waited for other ranks to enter a call.
 *
 * profile-ranks.json is written at the end of a run and has means over its steps:
 *   {"steps", "engine", "group", "ranks":[{"host", "node"}], "waited_ms":[[]],
 *    "dispatched_bytes":[[]], "combined_bytes":[[]], "expert_rows":[[]], "expert_ranks":[[]]}
 * "group" is the number of consecutive ranks that share one set of experts. waited_ms is the time
 * for which the rank of the row waited for the rank of the column. Bytes go from the rank of the
 * row to the rank of the column. expert_rows and expert_ranks have indices [layer][expert].
 * expert_ranks is the rank of the group that holds the expert at the end.
 */
#pragma once

#include <stdio.h>

#include "model/model.h"

typedef struct moert_ledger {
    moert_model *model; /* NULL: not open */
    moert_comm *world;
    const char *out;
    FILE *file; /* rank 0: the open profile-steps.jsonl */
    size_t steps, ranks, layers, experts;
    struct moert_ledger_account *accounts; /* [R] times in the last step */
    double *waited_ns;                     /* [R] */
    uint64_t *bytes;                       /* [2,EP] memory of `tally` */
    moert_exchange_tally tally;            /* bytes sent to the ranks of the EP group */
    double *rows; /* [layers,E] rows of each expert, summed over the steps */
} moert_ledger;

/* Removes the ledger's files and profile.json of an older run from the run directory `out`. Not
 * collective. Errors: ERROR_IO, ERROR_MEMORY. */
moert_status moert_ledger_clear(const char *out);

/* Opens a ledger in directory `out`. The device's profile must be enabled. Collective. Errors:
 * ERROR_IO, ERROR_MEMORY, ERROR_COMM. */
moert_status moert_ledger_open(moert_ledger *ledger, moert_model *model, const char *out);
/* moert_ledger_close is legal also if moert_ledger_open has failed or was not called. */
void moert_ledger_close(moert_ledger *ledger);

/* Begins a step. All ranks must call this between the same two collective calls. Not collective. */
void moert_ledger_begin(moert_ledger *ledger);
/* Ends the step, after moert_profile_end. rows[layers,E]: the experts' rows in the step.
 * Collective. Errors: ERROR_IO, ERROR_MEMORY, ERROR_COMM. */
moert_status moert_ledger_end(moert_ledger *ledger, uint64_t step, const uint64_t *rows);

/* Writes profile-ranks.json. Collective. Errors: ERROR_IO, ERROR_MEMORY, ERROR_COMM. */
moert_status moert_ledger_write(moert_ledger *ledger);
