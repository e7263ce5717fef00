/* The memory of a training run: the estimate before it, and the memory used. */
#pragma once

#include "tools/common/fit.h"
#include "train/trainer.h"

/* The input and the result of the estimate before the run. */
typedef struct moert_train_memory {
    moert_memory_setting setting;
    moert_mesh_place *places; /* setting.places; the caller frees them */
    moert_fit fit;            /* result of the estimate; needed 0: no estimate */
    size_t resident;          /* resident memory of this process before the model was created */
    char options[128];        /* options that --recompute auto has chosen, or "" */
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
