/* The inputs of a run of moert-train: its data, and the config of its model. */
#pragma once

#include "tools/train/data.h"
#include "tools/train/options.h"

typedef struct moert_train_inputs {
    moert_train_data data;
    moert_model_config config;
    bool untied; /* config.json ties the embeddings, but the files have a separate head */
} moert_train_inputs;

/* Opens the data. Options for batch, length and steps that were not given are set from the data.
 * Not collective. */
moert_status moert_train_open_data(moert_train_options *options, moert_train_data *data);

/* Reads the model's config, or creates it for a new model. Checks that the data's tokens were made
 * for this model's vocabulary. Not collective. */
moert_status moert_train_take_config(moert_train_options *options, moert_train_inputs *inputs);
