/*
 * The training loop: batches, micro-batches, losses, optimizer, held-out loss, metrics,
 * checkpoints, samples.
 */
#pragma once

#include "data/data.h"
#include "train/batch_ramp.h"
#include "train/metrics.h"
#include "train/save.h"
#include "train/schedule.h"
#include "train/step_ranges.h"

/* Whether training waits while a checkpoint is written (HELD) or continues (WAIT, SKIP). If the
 * previous save is not finished, WAIT waits for its end, and SKIP leaves out the new save. */
typedef enum moert_save_mode { MOERT_SAVE_HELD, MOERT_SAVE_WAIT, MOERT_SAVE_SKIP } moert_save_mode;

/* Where a run begins. NONE: at step 0. PATH: at a given checkpoint. AUTO, MUST: the run begins at
 * the newest undamaged checkpoint of the run's directory. Without a checkpoint, AUTO begins at step
 * 0, and MUST fails with ERROR_USAGE. */
typedef enum moert_resume {
    MOERT_RESUME_NONE,
    MOERT_RESUME_PATH,
    MOERT_RESUME_AUTO,
    MOERT_RESUME_MUST
} moert_resume;

/* Reactions to wrong bits: end the run, go back to the last checkpoint, or only warn. */
#define MOERT_MISMATCH_WORDS "end|back|warn"
typedef enum moert_mismatch {
    MOERT_MISMATCH_END,
    MOERT_MISMATCH_BACK,
    MOERT_MISMATCH_WARN
} moert_mismatch;

typedef struct moert_trainer_options {
    size_t steps, seed;
    moert_batch_plan batch; /* sequences of each step, over all ranks */
    /* parts of the batch, computed one after the other; must divide each batch */
    size_t micro_batches;
    size_t length; /* tokens per sequence */
    moert_schedule schedule;
    moert_model_losses losses;
    moert_optimizer_options optimizer;
    /* steps between held-out losses, which are also computed after the last step; 0 = none */
    size_t eval_every;
    size_t eval_sequences;
    size_t save_every; /* steps between checkpoints; 0 = none */
    bool save_last;    /* with `out`, also save a checkpoint after the last step */
    moert_save_mode save_mode;
    /* bandwidth limit of all ranks together for saves while training continues; 0 = no limit */
    double save_bytes_per_s;
    moert_keep keep; /* checkpoints kept */
    /* also save a checkpoint when the held-out loss is the lowest so far, and keep it */
    bool keep_best;
    /* end the run once this number of held-out losses in a row were not lower; 0 = never */
    size_t early_stop;
    /* rate of moert_model_update_correction, which is called after each step; 0 = the biases stay
     * fixed */
    double bias_rate;
    size_t rebalance_every;     /* steps between moves of experts (train/rebalance.c); 0 = none */
    bool clones;                /* with rebalance_every: experts with many rows get clones */
    size_t max_skipped;         /* stop after this many steps in a row with non-finite gradients */
    moert_step_ranges left_out; /* steps whose data are left out; these steps change nothing */
    /* Replay: computes these steps of the run in `out` again, from the run's last checkpoint before
     * them, and writes their metrics. Saves nothing. Empty: no replay, but training. */
    moert_step_range replay;
    const char *replay_gradients; /* file for the gradients of the replay's last step, or NULL */
    const char *out;      /* run directory (checkpoints/, model/), or NULL: nothing is saved */
    const char *save_dir; /* directory of the checkpoints; NULL = OUT/checkpoints */
    const char *metrics;  /* file of the metrics as JSON lines, or NULL */
    bool tensorboard;     /* also write the metrics to `out` as event files of TensorBoard */
    bool watch;           /* add the numbers of train/monitor.c to the metrics */
    double peak_flops;    /* with `watch`: peak FLOP/s of a rank's device; 0: measure it */
    moert_resume resume;
    const char *checkpoint; /* path of the checkpoint for MOERT_RESUME_PATH */
    /* options that change results, as lines "--name value\n"; a resume warns if the checkpoint has
     * other values; NULL: none */
    const char *settings;
    bool checksums;      /* compare a checkpoint's bytes with its checksums before it is read */
    size_t verify_every; /* steps between checks in which ranks verify each other
                               (train/cross_check.h); 0 = none */
    double verify_share; /* fraction of the time for such checks; 0 = none */
    moert_mismatch on_mismatch;
    const char *config_text; /* config.json of the model */
    /* the program and its options as JSON, for OUT/run.json (train/run_file.h); NULL: no such
     * file */
    const char *record;
    size_t log_every; /* steps between console lines; 0 = none */
    /* print a table of the steps' times at the end, and write the table to OUT/profile.json */
    bool profile;
    const char *trace; /* file for a Chrome trace of MOERT_TRACE_STEPS steps, or NULL */
} moert_trainer_options;

/*
 * Trains `model` on `data`. When any rank gets SIGTERM or SIGUSR1, all ranks finish their
 * micro-batch or evaluation. The ranks drop the step if it has further micro-batches. With `out`,
 * the ranks write a checkpoint of the last complete step. Then moert_train sets *interrupted and
 * returns MOERT_OK. Errors: ERROR_USAGE, ERROR_MISMATCH (a checkpoint of another run),
 * ERROR_NUMERIC (max_skipped), ERROR_HARDWARE (verify_every, verify_share), ERROR_IO, ...
 * Collective.
 */
moert_status moert_train(moert_model *model, const moert_data *data,
                         const moert_trainer_options *options, bool *interrupted);

/* Computes the gradients of step 0 without training, and writes them to a safetensors file.
 * Collective. */
moert_status moert_train_gradients(moert_model *model, const moert_data *data,
                                   const moert_trainer_options *options, const char *path);

/* Computes the logits [sequences,S,V] of the first micro-batch of step 0 without training, and
 * writes them to a safetensors file. Collective. */
moert_status moert_train_logits(moert_model *model, const moert_data *data,
                                const moert_trainer_options *options, const char *path);
