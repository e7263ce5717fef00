/*
 * The metrics of a run: JSON lines in a file, and console lines with a progress bar. Only one rank
 * writes the metrics.
 *
 * A line of the file: {"step":0, "loss":5.5, "aux_loss":2, "grad_norm":1.2, "lr":0.001,
 * "tokens_per_s":81234, "expert_load":1.3, "batch":8, "epoch":0.2, "rank_load":1.1,
 * "heldout_loss":5.4, "test_loss":5.4, "save_held_s":0.1, "save_s":2.5, "moved_experts":3,
 * "move_s":0.1, "clones":2, "skipped":true}. Keys after expert_load are present only in runs and
 * steps to which they apply. After these keys come the losses of a blend's sources
 * (train/evaluate.h) and the numbers of --watch (train/monitor.c). Numbers have 17 digits; a number
 * that is not finite is null. If `events` is set, the same numbers are also written to an event
 * file of TensorBoard.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "train/event_file.h"

typedef struct moert_metrics moert_metrics;

typedef struct moert_metrics_options {
    const char *path; /* file for the JSON lines; NULL = no file */
    /* first step of this run; lines of an older run from this step on are dropped */
    uint64_t start;
    uint64_t total;     /* steps of the whole training, for the progress bar */
    const char *events; /* directory for the event file; NULL = no event file */
    /* stream for lines of steps and, if the stream is a terminal, for a progress bar; NULL = no
     * console output */
    FILE *console;
    /* steps between console lines; steps with a held-out loss, skipped steps and the last step also
     * have a line; 0 = no lines */
    uint64_t every;
} moert_metrics_options;

enum { MOERT_METRICS_MORE = 3 };

typedef struct moert_metrics_row {
    uint64_t step;
    double loss, aux_loss, grad_norm, lr, tokens_per_s;
    double expert_load; /* rows of the busiest expert / mean over the experts */
    double batch;       /* sequences of the step; 0: not reported, since all steps have as many */
    double epoch;       /* epochs of data used so far; 0: the data have no epochs */
    /* rows of the busiest rank / mean over the ranks; 0: not reported, since experts do not move */
    double rank_load;
    /* number of experts and clones moved since the previous row; time of these moves */
    double moved_experts, move_s;
    double clones; /* number of clones of experts, in all layers */
    /* time for which the run has waited for saves since the previous row, or 0 */
    double save_held_s;
    double save_s; /* duration of the save that has ended since the previous row, or 0 */
    bool has_heldout, has_test;
    double heldout_loss, test_loss;
    struct {
        const moert_scalar *number;
        size_t count;
    } more[MOERT_METRICS_MORE]; /* further numbers */
    bool skipped; /* the step was not applied, because its loss or gradient was not finite */
} moert_metrics_row;

/*
 * Opens the file. If start > 0, and the file exists and is not a device or pipe, keeps its complete
 * lines of earlier steps. Otherwise truncates the file. Does not change a file that another job
 * writes to. Errors: ERROR_USAGE (another job writes there), ERROR_IO, ERROR_MEMORY.
 */
moert_status moert_metrics_open(const moert_metrics_options *options, moert_metrics **metrics);

/* Writes the numbers of a step. Flushes the line in the file at once. Errors: ERROR_IO,
 * ERROR_MEMORY. */
moert_status moert_metrics_write(moert_metrics *metrics, const moert_metrics_row *row);

/* Removes the progress bar from the terminal, so that other lines may follow. NULL is legal. */
void moert_metrics_clear(const moert_metrics *metrics);
/* Removes the files that moert_metrics_open has created, if they have no step. NULL is legal. */
void moert_metrics_discard(moert_metrics *metrics);
/* Removes the progress bar and closes the file. NULL is legal. Errors: ERROR_IO. */
moert_status moert_metrics_close(moert_metrics *metrics);
