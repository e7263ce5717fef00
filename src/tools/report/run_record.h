/*
 * Reads the records in a run directory: metrics.jsonl (train/metrics.h), run.json
 * (train/run_file.h; older runs have none) and, after --profile, profile-steps.jsonl and
 * profile-ranks.json (train/ledger.h) and profile.json (train/breakdown.h).
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"

/* X(NAME, text): the classes into which the report groups the operations of a step. */
#define MOERT_TIME_TABLE(X)                                                                        \
    X(GEMMS, "GEMMs")                                                                              \
    X(KERNELS, "other kernels")                                                                    \
    X(MOVES, "dispatch and combine")                                                               \
    X(MESSAGES, "messages")                                                                        \
    X(WAITING, "waiting for other ranks")                                                          \
    X(HOST, "host")

typedef enum moert_time {
#define MOERT_TIME_ENUM(name, text) MOERT_TIME_##name,
    MOERT_TIME_TABLE(MOERT_TIME_ENUM)
#undef MOERT_TIME_ENUM
        MOERT_TIMES
} moert_time;

const char *moert_time_text(moert_time time);
/* The class of an operation of device/profile/profile.h, or of "host". */
moert_time moert_time_of(const char *operation);

/* X(name): numbers in metrics.jsonl that the report shows as curves. */
#define MOERT_METRIC_TABLE(X)                                                                      \
    X(step)                                                                                        \
    X(loss)                                                                                        \
    X(heldout_loss) X(test_loss) X(lr) X(grad_norm) X(tokens_per_s) X(expert_load) X(mfu) X(skipped)

/* A line of metrics.jsonl. A boolean true is stored as 1; a null or absent value is NaN. */
typedef struct moert_run_step {
#define MOERT_METRIC_FIELD(name) double name;
    MOERT_METRIC_TABLE(MOERT_METRIC_FIELD)
#undef MOERT_METRIC_FIELD
} moert_run_step;

/* The mean times of a rank in a step, in ms. */
typedef struct moert_run_rank {
    const char *host; /* NULL: not recorded */
    size_t node;
    double step_ms, ms[MOERT_TIMES]; /* the values of `ms` add up to step_ms */
} moert_run_rank;

typedef struct moert_run_record {
    size_t steps, room;
    moert_run_step *step; /* [steps] */
    json_t *last_step;    /* the object of the last line of metrics.jsonl, or NULL */
    json_t *run;          /* the object of run.json, or NULL */

    size_t ranks, profiled_steps; /* 0 without a profile; then the fields below are 0 or NULL */
    moert_run_rank *rank;         /* [ranks] */
    json_t *operations;           /* the object of profile.json, or NULL */
    /* the object of profile-ranks.json, which the run writes at its end; NULL until then. The
     * times, bytes and rows below are means over the steps of profile-ranks.json. Without
     * profile-ranks.json, all fields below are 0 or NULL */
    json_t *exchange;
    size_t group; /* ranks that share one set of experts */
    /* [ranks,ranks] time for which the rank of the row waited for the rank of the column */
    double *waited_ms;
    /* [ranks,ranks] bytes from the rank of the row to the rank of the column */
    double *dispatched_bytes, *combined_bytes;
    size_t layers, experts;
    double *expert_rows; /* [layers,experts] */
    /* [layers,experts] the rank in the group that held the expert at the end of the run; NULL: not
     * recorded */
    double *expert_ranks;
} moert_run_record;

/* Reads the run directory `path`. Errors: ERROR_IO (no such run), ERROR_FORMAT (file, line and
 * field), ERROR_MISMATCH (files of different runs), ERROR_MEMORY. Free *record, also on failure. */
moert_status moert_run_record_read(const char *path, moert_run_record *record);
void moert_run_record_free(moert_run_record *record);
