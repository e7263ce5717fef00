/* What a run of moert-train reads: its data, and the model's config. */
#pragma once

#include "tools/train/data.h"
#include "tools/train/options.h"

typedef struct moert_train_inputs {
    moert_train_data data;
    moert_model_config config;
    bool untied; /* config.json ties the embeddings, but the files have a head of their own */
} moert_train_inputs;

/* Opens the data. Options that were not given (batch, length, steps) get values that follow from
 * the data. Not collective. */
moert_status moert_train_open_data(moert_train_options *options, moert_train_data *data);

/* Reads or makes the model's config, and checks that the tokens of the data are the model's. Not
 * collective. */
moert_status moert_train_take_config(moert_train_options *options, moert_train_inputs *inputs);
