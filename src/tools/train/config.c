/* The config of a new model from moert-train's options, and what the run takes from a config. */
#include "tools/train/config.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "io/json.h"

/* The families of --form, in the order of its words. */
static const moert_family forms[] = {MOERT_FAMILY_MIXTRAL,     MOERT_FAMILY_QWEN3_MOE,
                                     MOERT_FAMILY_OLMOE,       MOERT_FAMILY_QWEN2_MOE,
                                     MOERT_FAMILY_GLM4_MOE,    MOERT_FAMILY_GPT_OSS,
                                     MOERT_FAMILY_DEEPSEEK_V2, MOERT_FAMILY_DEEPSEEK_V3};

/* Sets the sizes of shared experts and dense layers, which have no options: as wide as the experts
 * of a token together. */
static void size_dense(moert_model_config *config) {
    const size_t active = config->router.topk * config->intermediate;
    config->dense_intermediate = active + config->shared_experts * config->intermediate;
    config->shared_intermediate =
        config->shared_gate ? active : config->shared_experts * config->intermediate;
    for (size_t l = 0; l < config->first_dense && l < config->layers; l++)
        moert_layer_set_add(&config->dense_layers, l);
}

/* Sets what only DeepSeek's families have, from the head size: latent sizes in the proportions of
 * the released models, V3's 4 of 8 groups of experts if there are enough experts, and one dense
 * layer. */
static void size_deepseek(moert_model_config *config) {
    const size_t size = config->head_size, experts = config->router.experts;
    const bool v3 = config->family == MOERT_FAMILY_DEEPSEEK_V3;
    config->latent = (moert_latent_sizes){.q_rank = v3 ? 12 * size : 0, /* V2-Lite has none */
                                          .kv_rank = 4 * size,
                                          .nope = size,
                                          .rope = size / 2,
                                          .value = size};
    config->head_size = config->rope.width = size / 2; /* the head_dim of transformers */
    config->rope.interleaved = true;
    config->router.renormalise &= v3;
    config->first_dense = 1;
    if (v3 && (experts % 8 != 0 || experts / 8 < 2 || experts / 2 < config->router.topk))
        config->router.groups = config->router.kept_groups = 1;
}

moert_status moert_config_from_sizes(const moert_model_sizes *sizes, moert_model_config *config) {
    moert_model_config_start(config, forms[sizes->form]);
    config->vocabulary = sizes->vocabulary;
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
    /* weights of the best scores sum to 1 anyway, and one sigmoid over its sum is always 1 */
    config->router.renormalise = config->router.score == MOERT_SCORE_SOFTMAX ||
                                 (config->router.score == MOERT_SCORE_SIGMOID && sizes->topk > 1);
    if (config->partial_rotary > 0.0f)
        config->rope.width = (size_t)((double)config->head_size * (double)config->partial_rotary);
    if (config->shared_gate) /* a family whose windows are off */
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

static int32_t end_of_config(const moert_model_config *config) {
    json_t *object;
    int32_t end = -1;
    if (moert_json_parse("config.json", "the config", config->text, strlen(config->text),
                         &object) != MOERT_OK)
        return -1;
    const json_t *value = json_object_get(object, "eos_token_id");
    if (json_is_array(value))
        value = json_array_get(value, 0);
    if (json_is_integer(value) && json_integer_value(value) >= 0 &&
        (uint64_t)json_integer_value(value) < config->vocabulary)
        end = (int32_t)json_integer_value(value);
    json_decref(object);
    return end;
}

moert_status moert_config_document_end(const char *given, bool from_config,
                                       const moert_model_config *config, int32_t *end) {
    char *rest;
    *end = -1;
    if (given == NULL && from_config)
        *end = end_of_config(config);
    if (given == NULL || strcmp(given, "none") == 0)
        return MOERT_OK;
    const unsigned long long value = strtoull(given, &rest, 10);
    if (given[0] < '0' || given[0] > '9' || *rest != '\0' || value >= config->vocabulary)
        return MOERT_FAIL(
            ERROR_USAGE, "--document-end %s: expected a token below the vocabulary of %zu, or none",
            given, config->vocabulary);
    *end = (int32_t)value;
    return MOERT_OK;
}

/* Prints the lines of config.json without indentation and final commas. */
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
