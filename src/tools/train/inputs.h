/* The model and the data that moert-train's options name. */
#pragma once

#include "data/data.h"
#include "io/model_config.h"
#include "tools/common/options.h"
#include "tools/common/program.h"

/* The words of --form. */
#define MOERT_FORM_WORDS                                                                           \
    "mixtral|qwen3-moe|olmoe|qwen2-moe|glm4-moe|gpt-oss|deepseek-v2|deepseek-v3"

/* Sizes of a new model, from options. */
typedef struct moert_model_sizes {
    unsigned form; /* a word of MOERT_FORM_WORDS */
    size_t vocabulary, hidden, intermediate, layers, heads, kv_heads, head_size, experts, topk,
        max_positions;
} moert_model_sizes;

/* *config = the config of a new model, with the text of its config.json. Errors: ERROR_USAGE,
 * ERROR_MEMORY. */
moert_status moert_config_from_sizes(const moert_model_sizes *sizes, moert_model_config *config);

typedef struct moert_train_data {
    moert_data *data;
    int32_t *tokens, *targets; /* read from a safetensors file; NULL for other data */
} moert_train_data;

/*
 * Opens `paths` (moert_source_open), or a token file: raw integers of token_bits bits, or the
 * tensor `tokens` [steps,B,S+1] of a .safetensors file, with `targets` [steps,B,S] or without.
 * Exactly one of the two must be given. Paths may be a blend: a weight before each path, or all in
 * one word.
 */
moert_status moert_train_data_open(const moert_option_list *paths, const char *token_file,
                                   size_t token_bits, double held_out, moert_train_data *data);
void moert_train_data_close(moert_train_data *data);

/* Says how many epochs `sequences` sequences are, and how many each source of a blend has. */
void moert_train_data_say(moert_context *context, const moert_data *data, size_t sequences);

/*
 * *end = the token that ends a document, or -1: as `given` says, a number below the vocabulary or
 * "none"; without it, for data of --data, the eos_token_id of the model's config (of a list, the
 * first). Errors: ERROR_USAGE.
 */
moert_status moert_train_document_end(const char *given, bool from_config,
                                      const moert_model_config *config, int32_t *end);

/* ERROR_MISMATCH on all ranks if a rank sees other data, or another config.json, than rank 0.
 * Collective. */
moert_status moert_train_inputs_compare(moert_comm *world, const moert_data *data,
                                        const char *config_text);
