/* What moert-train works on: the model and the data that its options name. */
#pragma once

#include "data/data.h"
#include "io/model_config.h"
#include "tools/common/options.h"

/* Sizes of a new model, from options. */
typedef struct moert_model_sizes {
    unsigned form; /* 0 mixtral, 1 qwen3-moe */
    size_t vocabulary, hidden, intermediate, layers, heads, kv_heads, head_size, experts, topk,
        max_positions;
} moert_model_sizes;

/* A new model's config, with its text. Errors: ERROR_USAGE. */
moert_status moert_config_from_sizes(const moert_model_sizes *sizes, moert_model_config *config);

typedef struct moert_train_data {
    moert_data *data;
    int32_t *tokens; /* of a safetensors file */
} moert_train_data;

/*
 * Opens text paths, or a token file: raw numbers, or the tensor `tokens` [steps,B,S+1] of a
 * .safetensors file. Exactly one of them must be given.
 */
moert_status moert_train_data_open(const moert_option_list *text, const char *token_file,
                                   size_t token_bits, double held_out, moert_train_data *data);
void moert_train_data_close(moert_train_data *data);
