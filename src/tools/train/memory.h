/* The memory of a training run: what will be enough, and what was taken. */
#pragma once

#include "tools/common/fit.h"
#include "train/trainer.h"

/* What the estimate is made from, and what it says before the run. */
typedef struct moert_train_memory {
    moert_memory_setting setting;
    moert_mesh_place *places; /* of `setting`; the caller frees them */
    moert_fit fit;            /* before the run; needed 0: there is no estimate */
    size_t resident;          /* pages of this process before the model exists */
    char options[128];        /* those chosen by --recompute auto, or "" */
} moert_train_memory;

/*
 * Chooses config->memory where --recompute is auto, and estimates the run's memory. `most`: the
 * bytes that a rank may take, or 0. The result refers to `config`. ERROR_MEMORY, with options that
 * would help, if a rank has too little. Collective.
 */
moert_status moert_train_fit(const moert_context *context, const moert_mesh *mesh,
                             const moert_trainer_options *trainer, size_t most,
                             moert_model_config *config, moert_train_memory *memory);

/* Prints the estimate, if there is one. */
void moert_train_say_fit(const moert_context *context, const moert_train_memory *memory);

/* Prints the peak memory of the rank that used most of its device, next to the estimate for the
 * rows that it had; without an estimate, nothing. Collective. */
moert_status moert_train_say_memory(const moert_context *context, const moert_model *model,
                                    const moert_train_memory *memory);
