/* The trainer's struct and functions that its files share. */
#pragma once

#include "train/evaluate.h"
#include "train/loader.h"
#include "train/observer.h"
#include "train/trainer.h"

struct moert_trainer {
    moert_model *model;
    moert_run *run; /* the run that computes training and evaluation */
    const moert_data *data;
    const moert_trainer_options *options;
    moert_comm *world;
    bool first; /* rank 0 */
    moert_optimizer *optimizer;
    moert_saver *saver; /* NULL if the training saves nothing */
    char *checkpoints;  /* directory of the checkpoints; NULL without options->out */
    /* steps done at the last checkpoint that this process has saved, 0 without one */
    uint64_t saved_steps;
    double held_s, save_s; /* moert_metrics_row.save_held_s and save_s of the next row */
    moert_metrics *metrics;
    moert_run_state state;
    uint64_t end;                    /* the step before which the loop ends */
    void *observer[MOERT_OBSERVERS]; /* NULL: not wanted */
    uint64_t wrong_step; /* the last step with wrong bits, plus 1; 0: no step had wrong bits */
    moert_evaluation *evaluation;
    moert_loader *loader;
    moert_loaded loaded; /* this rank's sequences of the step */
    uint64_t targets;    /* unmasked targets of the step, over all ranks */
    /* the last step has gradients: its data were not left out, and its routing scores were
     * finite */
    bool has_gradients;

    /* for observers */
    size_t micro_batch;
    moert_model_result result; /* result of the micro-batch */
    uint64_t *counts; /* [layers,E] slots per expert, summed over the step's micro-batches so far */
    moert_update coefficients; /* coefficients of the update */
    moert_metrics_row row;
    double step_s;
};

/* Whether any GEMM of the model has bf16 operands. */
static inline bool moert_trainer_uses_bf16(const moert_trainer *t) {
    const moert_model_config *c = moert_model_describe(t->model);
    return c->dense != MOERT_PRECISION_F32 || c->precision != MOERT_PRECISION_F32;
}

/* The number of sequences of the step that is computed. */
static inline size_t moert_trainer_batch(const moert_trainer *t) {
    return moert_batch_at(&t->options->batch, t->state.step);
}

/* The number of experts in all MoE layers together. */
static inline size_t moert_trainer_experts(const moert_trainer *t) {
    return moert_model_moe_layers(t->model) * moert_model_describe(t->model)->router.experts;
}

moert_trainer moert_trainer_make(moert_model *model, const moert_data *data,
                                 const moert_trainer_options *options);
/* Checks the options, allocates memory for this rank's sequences, and sets the state of a new run.
 * Not collective. */
moert_status moert_trainer_prepare(moert_trainer *t);
void moert_trainer_free(moert_trainer *t);

/* Loads the checkpoint that the options name, if any. If the run directory has checkpoints, the
 * loaded checkpoint must be one of them, unless the run has 0 steps. Errors: those of
 * moert_checkpoint_load, ERROR_MISMATCH (a checkpoint of another run), ERROR_USAGE. Collective. */
moert_status moert_trainer_resume(moert_trainer *t);

/* Creates the run directory, and removes the files of unfinished saves. Removes an older profile if
 * this run writes one or starts at step 0. Not collective. */
moert_status moert_trainer_open_directory(const moert_trainer *t);
moert_status moert_trainer_create_saver(moert_trainer *t);
/* Saves the state after the last step. Saves in the background, unless this is the run's last save
 * or the run waits for its saves. */
moert_status moert_trainer_save(moert_trainer *t, bool last);
/* Advances a background save, or waits for its end. If the save fails, training continues.
 * Collective. */
void moert_trainer_poll_save(moert_trainer *t);
void moert_trainer_end_save(moert_trainer *t);
/* Whether an action that is due every `every` steps is due after `done` of `total` steps. */
static inline bool moert_trainer_due(uint64_t every, uint64_t done, uint64_t total) {
    return every > 0 && (done % every == 0 || done == total);
}

/* After wrong bits, loads the newest checkpoint of the run. Without a checkpoint, returns
 * ERROR_HARDWARE with the message about the wrong bits. Collective. */
moert_status moert_trainer_go_back(moert_trainer *t);

/* Loads the sequences of the step. ERROR_MISMATCH if all targets are masked. Collective. */
moert_status moert_trainer_load(moert_trainer *t);
/* Runs micro-batch `index` of the loaded step forward. Collective. */
moert_status moert_trainer_forward(moert_trainer *t, size_t index);
/*
 * Loads a step, and computes its losses and gradients: the means over its micro-batches, which are
 * added in order. If routing scores are not finite, sets has_gradients to false. *stopped = whether
 * a rank caught a signal (train/stop.h) before the last micro-batch; the gradients are then
 * incomplete. Collective.
 */
moert_status moert_trainer_gradients(moert_trainer *t, moert_model_result *mean, bool *stopped);
/* Writes the gradients of the last step, which has number `step`. ERROR_NUMERIC if the step has no
 * gradients. Collective. */
moert_status moert_trainer_save_gradients(const moert_trainer *t, uint64_t step, const char *path);
