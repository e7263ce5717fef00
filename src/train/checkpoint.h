/*
 * Checkpoints and finished models as directories, written by all ranks together (train/save.h) and
 * read by any number of ranks.
 *
 *   config.json  model.safetensors        a model in Hugging Face form
 *   optimizer.safetensors  state.json     the state to resume a run, in checkpoints only
 *   manifest.json                         checksums of the other files (io/manifest.h)
 *
 * A directory is written under a temporary name, flushed and renamed, so it is either complete or
 * absent. The bytes of a directory depend only on the model and the run, not on ranks, engines,
 * paths or time. All functions are collective unless said otherwise.
 */
#pragma once

#include "data/data.h"
#include "train/batch_ramp.h"
#include "train/optimizer.h"
#include "train/schedule.h"

/* X(field): the integers in state.json, the state of a run. state.json also has the texts declared
 * below. */
#define MOERT_RUN_STATE_TABLE(X)                                                                   \
    X(step)           /* steps done: the position in the data and in the random numbers */         \
    X(applied)        /* steps that updated the weights */                                         \
    X(skipped)        /* steps skipped for non-finite gradients */                                 \
    X(skipped_in_row) /* skipped steps since the last applied one */                               \
    X(seed)                                                                                        \
    X(batch)  /* sequences per step, at the end of a ramp */                                       \
    X(length) /* tokens per sequence */

/* The lowest held-out loss of a run so far. */
typedef struct moert_best {
    uint64_t step;  /* steps done when the loss was computed; 0: there is none */
    uint64_t since; /* held-out losses since then */
    double loss;
} moert_best;

enum { MOERT_SETTINGS_BYTES = 2048 };
typedef struct moert_run_state {
#define MOERT_RUN_STATE_FIELD(field) uint64_t field;
    MOERT_RUN_STATE_TABLE(MOERT_RUN_STATE_FIELD)
#undef MOERT_RUN_STATE_FIELD
    /* steps whose data were left out; 0 if an older state.json has no such number */
    uint64_t left_out;
    moert_best best;
    /* Texts of state.json. A text that an older version's state.json lacks is "". */
    char batch_ramp[MOERT_BATCH_RAMP_TEXT_BYTES]; /* "" without a ramp */
    char data[MOERT_IDENTITY_BYTES];              /* identity of the training data */
    char split[MOERT_SPLIT_TEXT_BYTES];           /* split of the data (data/split.h); "" for token
                                                 arrays */
    char schedule[MOERT_SCHEDULE_TEXT_BYTES];     /* schedule of the learning rate */
    bool has_recipe; /* written since --precision nvfp4 is the published recipe */
    /* other options that change results, as lines "--name value\n" */
    char options[MOERT_SETTINGS_BYTES];
} moert_run_state;

/* Reads the state of the checkpoint at `path`. Not collective. Errors: ERROR_IO, ERROR_FORMAT. */
moert_status moert_checkpoint_state(const char *path, moert_run_state *state);
/* Reads a checkpoint into the model and the optimizer. `manifest`, if not NULL, gets the checksums
 * of the bytes read. Errors: ERROR_IO, ERROR_FORMAT, ERROR_MISMATCH (the checkpoint of another
 * model). */
moert_status moert_checkpoint_load(moert_optimizer *optimizer, const char *path,
                                   moert_manifest *manifest);

/* Writes DIRECTORY/state.json. Not collective. Errors: ERROR_IO, ERROR_MEMORY. */
moert_status moert_run_state_write(const char *directory, const moert_run_state *state);
/* Reads the file state.json of a checkpoint. Not collective. Errors: ERROR_IO, ERROR_FORMAT. */
moert_status moert_run_state_read(const char *path, moert_run_state *state);

/* *path = DIRECTORY/step-00000123, for step 123. The caller frees *path. Not collective. Errors:
 * ERROR_MEMORY. */
moert_status moert_checkpoint_path(const char *directory, uint64_t step, char **path);
/* steps[count] = the steps of the checkpoints in `directory`, newest first; none if the directory
 * does not exist. The caller frees *steps. Not collective. Errors: ERROR_IO, ERROR_MEMORY. */
moert_status moert_checkpoint_list(const char *directory, uint64_t **steps, size_t *count);

/* Removes checkpoints whose writing was interrupted. No job may be saving in `directory`. Not
 * collective. Errors: ERROR_IO, ERROR_MEMORY. */
moert_status moert_checkpoint_sweep(const char *directory);

/* Which checkpoints are kept when a new one is written. */
typedef struct moert_keep {
    size_t last;   /* number of newest checkpoints that are kept */
    size_t every;  /* all checkpoints whose step is a multiple of this number are kept; 0 = none */
    uint64_t step; /* the checkpoint of this step is kept; 0 = none */
} moert_keep;

/*
 * After writing checkpoint `newest`, removes the older checkpoints of `directory` that `keep` does
 * not retain. Also removes checkpoints of higher steps, which belong to an older run, and the
 * remains of interrupted saves. Not collective. Errors: ERROR_IO, ERROR_MEMORY.
 */
moert_status moert_checkpoint_prune(const char *directory, uint64_t newest, moert_keep keep);
