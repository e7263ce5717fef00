/* Creates the config of a new model from moert-train's options. Finds the end token and the text of
 * config.json of any model. */
#pragma once

#include "comm/comm.h"
#include "io/model_config.h"

/* The words of --form. */
#define MOERT_FORM_WORDS                                                                           \
    "mixtral|qwen3-moe|olmoe|qwen2-moe|glm4-moe|gpt-oss|deepseek-v2|deepseek-v3"

/* Sizes of a new model, as the options give them. */
typedef struct moert_model_sizes {
    unsigned form; /* index of a word of MOERT_FORM_WORDS */
    size_t vocabulary, hidden, intermediate, layers, heads, kv_heads, head_size, experts, topk,
        max_positions;
    int32_t end_token; /* eos_token_id; -1: none */
} moert_model_sizes;

/* *config = the config of a new model, including the text of its config.json. Errors: ERROR_USAGE,
 * ERROR_MEMORY. */
moert_status moert_config_from_sizes(const moert_model_sizes *sizes, moert_model_config *config);

/*
 * *end = the token that ends a document, or -1. `given` may be a number below the vocabulary, the
 * text of an added token in tokenizer.json of the directory `model`, or "none". If `given` is NULL,
 * *end is eos_token_id of the model's config, or the first element of eos_token_id if that is a
 * list. `model` is NULL for a new model, which has no eos_token_id. Errors: ERROR_USAGE, those of
 * moert_json_read.
 */
moert_status moert_config_document_end(const char *given, const char *model,
                                       const moert_model_config *config, int32_t *end);

/* ERROR_MISMATCH on all ranks if the text of config.json differs between a rank and rank 0.
 * Collective. */
moert_status moert_config_compare(moert_comm *world, const char *text);
