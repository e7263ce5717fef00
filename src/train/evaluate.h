/*
 * Losses of held-out and test data: the mean cross-entropy over the targets of evenly spaced
 * sequences. For a blend, each source also has its own mean cross-entropy.
 */
#pragma once

#include "data/data.h"
#include "model/model.h"
#include "train/event_file.h"

typedef struct moert_evaluation moert_evaluation;

typedef struct moert_evaluation_options {
    moert_run *run;
    const moert_data *data; /* run and data must outlive the evaluation */
    /* sequences of an evaluation; a blend's sources get numbers in proportion to their weights */
    size_t sequences;
    size_t at_once; /* sequences that the model computes at a time */
    size_t length;
    moert_model_losses losses;
} moert_evaluation_options;

/* Not collective. Errors: ERROR_MEMORY. */
moert_status moert_evaluation_create(const moert_evaluation_options *options,
                                     moert_evaluation **evaluation);
void moert_evaluation_destroy(moert_evaluation *evaluation); /* NULL is legal */

/* *loss = the mean over all held-out or test sequences. Errors: those of moert_data_kept_sequence,
 * ERROR_MISMATCH (all targets are masked), ... Collective. */
moert_status moert_evaluation_run(moert_evaluation *evaluation, moert_use use, double *loss);

/* The mean losses of a blend's sources in the last evaluation of `use`. The loss of a source has
 * the name heldout_loss/NAME or test_loss/NAME, where NAME is the source's path. Sources without
 * targets are left out. The list is valid until the next evaluation. Not collective. */
size_t moert_evaluation_list(const moert_evaluation *evaluation, moert_use use,
                             const moert_scalar **numbers);
