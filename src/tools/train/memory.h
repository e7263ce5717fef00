/* The memory of a training run: estimated before the run, and measured after it. */
#pragma once

#include "tools/common/fit.h"
#include "train/trainer.h"

/* Input and result of the estimate before the run. */
typedef struct moert_train_memory {
    moert_memory_setting setting;
    moert_mesh_place *places; /* [ranks] what setting.places points to; the caller frees it */
    moert_fit fit;            /* result of the estimate; `needed` is 0 without an estimate */
    size_t resident;          /* resident memory of this process before the model was created */
    char options[128];        /* options that --recompute auto has chosen, or "" */
} moert_train_memory;

/*
 * Estimates the run's memory; if --recompute is auto, first chooses config->memory. `most`: bytes
 * that a rank may take, or 0 for no given limit. The result points to `config`. ERROR_MEMORY if a
 * rank has too little memory; the message names options with which the run would fit. Collective.
 */
moert_status moert_train_fit(const moert_context *context, const moert_mesh *mesh,
                             const moert_trainer_options *trainer, size_t most,
                             moert_model_config *config, moert_train_memory *memory);

/* Prints the estimate, if there is one. */
void moert_train_say_fit(const moert_context *context, const moert_train_memory *memory);

/* Prints the peak memory of the rank with the highest use of device memory, and the estimate for
 * the rows that this rank had. Prints nothing if there is no estimate. Collective. */
moert_status moert_train_say_memory(const moert_context *context, const moert_model *model,
                                    const moert_train_memory *memory);
