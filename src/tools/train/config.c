/* Creates the config of a new model from moert-train's options. Finds the end token and the text of
 * config.json of any model. */
#include "tools/train/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/files.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/families.h"
#include "io/json.h"

/* The family of a word of --form, which is the model_type with "-" for "_". */
static moert_family family_of(unsigned form) {
    char word[32];
    snprintf(word, sizeof word, "%s", moert_choice_word(MOERT_FORM_WORDS, form));
    for (char *at = strchr(word, '-'); at != NULL; at = strchr(at, '-'))
        *at = '_';
    return moert_family_find(word);
}

/* Sets the sizes of shared experts and dense layers, for which there are no options. A dense layer
 * is as wide as all experts that a token uses together. */
static void size_dense(moert_model_config *config) {
    const size_t active = config->router.topk * config->intermediate;
    config->dense_intermediate = active + config->shared_experts * config->intermediate;
    config->shared_intermediate =
        config->shared_gate ? active : config->shared_experts * config->intermediate;
    for (size_t l = 0; l < config->first_dense && l < config->layers; l++)
        moert_layer_set_add(&config->dense_layers, l);
}

/* Sets the sizes that only DeepSeek's families have. Sizes of latents follow from the head size, in
 * the proportions of the released models. The first layer is dense. If there are enough experts,
 * the router of V3 keeps 4 of 8 groups of experts. */
static void size_deepseek(moert_model_config *config) {
    const size_t size = config->head_size, experts = config->router.experts;
    const bool v3 = config->router.score == MOERT_SCORE_SIGMOID;
    config->latent = (moert_latent_sizes){.q_rank = v3 ? 12 * size : 0, /* V2-Lite has none */
                                          .kv_rank = 4 * size,
                                          .nope = size,
                                          .rope = size / 2,
                                          .value = size};
    /* the definition of head_dim in transformers */
    config->head_size = config->rope.width = size / 2;
    config->rope.interleaved = true;
    config->router.renormalise &= v3;
    config->first_dense = 1;
    if (v3 && (experts % 8 != 0 || experts / 8 < 2 || experts / 2 < config->router.topk))
        config->router.groups = config->router.kept_groups = 1;
}

moert_status moert_config_from_sizes(const moert_model_sizes *sizes, moert_model_config *config) {
    moert_model_config_start(config, family_of(sizes->form));
    config->vocabulary = sizes->vocabulary;
    config->end_token = sizes->end_token;
    config->pad_token = -1;
    config->hidden = sizes->hidden;
    config->layers = sizes->layers;
    config->heads = sizes->heads;
    config->kv_heads = sizes->kv_heads > 0 ? sizes->kv_heads : sizes->heads;
    config->head_size = sizes->head_size > 0 ? sizes->head_size : sizes->hidden / sizes->heads;
    config->max_positions = sizes->max_positions;
    config->intermediate = sizes->intermediate;
    config->rope = (moert_rope_scheme){.theta = 1e4, .width = config->head_size};
    config->aux_coefficient = 0.01f;
    config->router.experts = sizes->experts;
    config->router.topk = sizes->topk;
    /* Weights that already sum to 1 are not renormalised. The only weight of a sigmoid with K = 1
     * is not renormalised, because the result would always be 1. */
    config->router.renormalise = config->router.score == MOERT_SCORE_SOFTMAX ||
                                 (config->router.score == MOERT_SCORE_SIGMOID && sizes->topk > 1);
    if (config->partial_rotary > 0.0f)
        config->rope.width = (size_t)((double)config->head_size * (double)config->partial_rotary);
    if (config->shared_gate) /* families with a shared gate have windows switched off */
        config->sliding_window = 0;
    for (size_t l = 0; l < config->layers && config->sliding_window > 0; l += 2) /* gpt-oss */
        moert_layer_set_add(&config->windowed, l);
    if (sizes->head_size == 0 && sizes->hidden % sizes->heads != 0)
        return MOERT_FAIL(ERROR_USAGE,
                          "--hidden %zu is not a multiple of --heads %zu; give --head-size",
                          sizes->hidden, sizes->heads);
    if (config->heads % config->kv_heads != 0)
        return MOERT_FAIL(ERROR_USAGE, "--heads %zu is not a multiple of --kv-heads %zu",
                          config->heads, config->kv_heads);
    if (config->head_size % 2 != 0)
        return MOERT_FAIL(ERROR_USAGE, "the head size, %zu, must be even for rotary positions",
                          config->head_size);
    if (sizes->topk > sizes->experts)
        return MOERT_FAIL(ERROR_USAGE, "--topk %zu exceeds --experts %zu", sizes->topk,
                          sizes->experts);
    if (config->latent.kv_rank > 0)
        size_deepseek(config);
    if (config->shared_gate || config->shared_experts > 0)
        size_dense(config);
    return moert_model_config_text(config, &config->text);
}

/* *end = the number of the added token with this text in MODEL/tokenizer.json; -1 if no added token
 * has it. */
static moert_status find_token(const char *model, const char *text, int32_t *end) {
    enum { MOST_BYTES = 1 << 30 };
    const json_t *token;
    json_t *object;
    char *path;
    size_t i;
    bool exists;
    *end = -1;
    MOERT_TRY(moert_file_exists(&exists, "%s/tokenizer.json", model));
    if (!exists)
        return MOERT_OK;
    MOERT_TRY(moert_text_path(&path, "%s/tokenizer.json", model));
    const moert_status status = moert_json_read(path, "the tokenizer", MOST_BYTES, &object);
    free(path);
    MOERT_TRY(status);
    json_array_foreach(json_object_get(object, "added_tokens"), i, token) {
        const char *content = json_string_value(json_object_get(token, "content"));
        const json_int_t id = json_integer_value(json_object_get(token, "id"));
        if (content != NULL && strcmp(content, text) == 0 && id >= 0 && id <= INT32_MAX)
            *end = (int32_t)id;
    }
    json_decref(object);
    return MOERT_OK;
}

moert_status moert_config_document_end(const char *given, const char *model,
                                       const moert_model_config *config, int32_t *end) {
    char *rest;
    *end = -1;
    if (given == NULL && model != NULL)
        *end = config->end_token;
    if (given == NULL || strcmp(given, "none") == 0)
        return MOERT_OK;
    const unsigned long long value = strtoull(given, &rest, 10);
    if (given[0] >= '0' && given[0] <= '9' && *rest == '\0' && value < config->vocabulary)
        *end = (int32_t)value;
    else if (model != NULL)
        MOERT_TRY(find_token(model, given, end));
    if (*end >= 0 && (uint64_t)*end < config->vocabulary)
        return MOERT_OK;
    return MOERT_FAIL(ERROR_USAGE,
                      "--document-end %s: expected a token below the vocabulary of %zu, an added "
                      "token in --model's tokenizer.json, or none",
                      given, config->vocabulary);
}

/* Prints the text of config.json line by line, without indentation and final commas. */
static void print_config(const void *text, FILE *file) {
    for (const char *at = text; *at != '\0'; at += strspn(at, "\n")) {
        at += strspn(at, " ");
        const size_t length = strcspn(at, "\n"), comma = length > 0 && at[length - 1] == ',';
        fprintf(file, "%.*s%c", (int)(length - comma), at, 0);
        at += length;
    }
}

moert_status moert_config_compare(moert_comm *world, const char *text) {
    return moert_comm_compare(world, print_config, text, MOERT_ERROR_MISMATCH,
                              "all ranks must see the same config.json");
}
