/*
 * The metrics of a run: JSON lines in a file, and console lines with a progress bar. One rank
 * uses it.
 *
 * A line of the file: {"step": 0, "loss": 5.5, "aux_loss": 2, "grad_norm": 1.2, "lr": 0.001,
 * "tokens_per_s": 81234, "expert_load": 1.3, "epoch": 0.2, "rank_load": 1.1, "heldout_loss": 5.4,
 * "test_loss": 5.4, "save_held_s": 0.1, "save_s": 2.5, "moved_experts": 3, "move_s": 0.1,
 * "clones": 2, "skipped": true}. Those after expert_load are present only in runs and steps to
 * which they apply. The losses of a blend's sources (train/evaluate.h) and the numbers of a watched
 * run (train/monitor.c) follow.
 * Numbers have 17 digits; one that is not finite is null. The same numbers go to an event file of
 * TensorBoard, if there is a directory for it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "train/event_file.h"

typedef struct moert_metrics moert_metrics;

typedef struct moert_metrics_options {
    const char *path;   /* the JSON lines; NULL = none */
    uint64_t start;     /* first step of this run: lines of an older run from here on are dropped */
    uint64_t total;     /* steps of the whole training, for the progress bar */
    const char *events; /* directory of the event file; NULL = none */
    FILE *console;      /* step lines, and a bar if it is a terminal; NULL = none */
    uint64_t every;     /* steps between console lines; held-out, skipped and last steps have one
                           as well; 0 = none */
} moert_metrics_options;

enum { MOERT_METRICS_MORE = 3 };

typedef struct moert_metrics_row {
    uint64_t step;
    double loss, aux_loss, grad_norm, lr, tokens_per_s;
    double expert_load;           /* rows of the busiest expert / mean */
    double epoch;                 /* epochs of data used so far; 0: no epochs */
    double rank_load;             /* rows of the busiest rank / mean; 0: not reported, since experts
                                     do not move */
    double moved_experts, move_s; /* experts and clones moved since the previous row, and the time
                                     that this took; or 0 */
    double clones;                /* number of clones of experts, in all layers */
    double save_held_s; /* time that the run has waited for saves since the previous row, or 0 */
    double save_s;      /* duration of the save that has ended since the previous row, or 0 */
    bool has_heldout, has_test;
    double heldout_loss, test_loss;
    struct {
        const moert_scalar *number;
        size_t count;
    } more[MOERT_METRICS_MORE]; /* further numbers */
    bool skipped;               /* the step was not applied, since loss or gradient were not
                                   finite */
} moert_metrics_row;

/*
 * Opens the file. With start > 0 it keeps the complete lines of earlier steps, if the file exists
 * and is not a device or pipe. Otherwise it truncates the file. A file that another job writes to
 * stays as it is. Errors: ERROR_USAGE (another job writes there), ERROR_IO, ERROR_MEMORY.
 */
moert_status moert_metrics_open(const moert_metrics_options *options, moert_metrics **metrics);

/* Reports a step; the file's line is flushed at once. Errors: ERROR_IO, ERROR_MEMORY. */
moert_status moert_metrics_write(moert_metrics *metrics, const moert_metrics_row *row);

/* Removes the files that moert_metrics_open has created, if no step is in them; NULL is legal. */
void moert_metrics_discard(moert_metrics *metrics);
/* Removes the bar and closes the file; NULL is legal. Errors: ERROR_IO. */
moert_status moert_metrics_close(moert_metrics *metrics);
