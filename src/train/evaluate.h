/*
 * Losses of held-out and test data: the mean cross-entropy over the targets of evenly spaced
 * sequences. For a blend, also the mean of each source.
 */
#pragma once

#include "data/data.h"
#include "model/model.h"
#include "train/event_file.h"

typedef struct moert_evaluation moert_evaluation;

typedef struct moert_evaluation_options {
    moert_run *run;
    const moert_data *data; /* run and data must outlive the evaluation */
    size_t sequences;       /* sequences of an evaluation, divided among a blend's sources by their
                               weights */
    size_t at_once;         /* sequences that the model computes at once */
    size_t length;
    moert_model_losses losses;
} moert_evaluation_options;

/* Not collective. Errors: ERROR_MEMORY. */
moert_status moert_evaluation_create(const moert_evaluation_options *options,
                                     moert_evaluation **evaluation);
void moert_evaluation_destroy(moert_evaluation *evaluation); /* NULL is legal */

/* *loss = the mean over all held-out or test sequences. Errors: those of moert_data_kept_sequence,
 * ERROR_MISMATCH (no token counts as a target), ... Collective. */
moert_status moert_evaluation_run(moert_evaluation *evaluation, moert_use use, double *loss);

/* The means of each source of a blend in the last run of this use: heldout_loss/NAME or
 * test_loss/NAME, where NAME is the source's path. A source without targets has none. They are
 * valid until the next run. Not collective. */
size_t moert_evaluation_list(const moert_evaluation *evaluation, moert_use use,
                             const moert_scalar **numbers);
