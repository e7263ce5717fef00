/*
 * Reads Hugging Face config.json. families.c has each family's keys and constants. model_fields.c
 * has the table of keys. Functions here and in config_*.c read the few keys that do not fit a
 * table.
 */
#include "base/files.h"
#include "io/model_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "args/activations.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/durable.h"
#include "io/families.h"
#include "io/internal.h"
#include "io/model_fields.h"

enum { CONFIG_LIMIT_BYTES = 16 << 20 };

void moert_model_config_start(moert_model_config *config, moert_family family) {
    *config = moert_family_of(family)->standard;
    config->family = family;
    config->initializer_range = 0.02f;
    moert_fields_default(config);
    config->output_bias = config->attention_bias && moert_family_of(family)->output_bias;
    config->end_token = config->pad_token = -1;
}

/* Returns an error that lists the supported model types. */
static moert_status refuse_type(const char *path, const char *type) {
    char types[1024] = "";
    size_t used = 0;
    for (moert_family i = 0; i < moert_families; i++) {
        const moert_family_row *row = moert_family_of(i);
        used += (size_t)snprintf(types + used, sizeof types - used, "%s%s%s%s", i > 0 ? ", " : "",
                                 row->model_type, row->alias != NULL ? ", " : "",
                                 row->alias != NULL ? row->alias : "");
    }
    return MOERT_FAIL(ERROR_UNSUPPORTED, "%s: model_type is '%.64s'; supported are %s", path, type,
                      types);
}

static moert_status read_family(const char *path, const json_t *root, moert_model_config *config) {
    json_t *value = moert_field_value(root, "model_type");
    const char *type = json_string_value(value);
    if (type == NULL)
        return MOERT_FAIL(ERROR_FORMAT, "%s: the key model_type is %s", path,
                          value == NULL ? "missing" : "not a string");
    const moert_family family = moert_family_find(type);
    if (family == moert_families)
        return refuse_type(path, type);
    moert_model_config_start(config, family);
    return MOERT_OK;
}

/* *token = the value of a key: a number, or the first element of a list; -1 if it is absent or
 * null. */
static moert_status read_token(const char *path, const json_t *root, const char *key,
                               json_int_t *token) {
    const json_t *value = moert_field_value(root, key),
                 *first = json_is_array(value) ? json_array_get(value, 0) : value;
    bool numbers = value == NULL || json_is_integer(value) || json_is_array(value);
    for (size_t i = 0; i < json_array_size(value); i++)
        numbers &= json_is_integer(json_array_get(value, i));
    *token = first != NULL ? json_integer_value(first) : -1;
    return numbers ? MOERT_OK
                   : MOERT_FAIL(ERROR_FORMAT,
                                "%s: %s must be a token's number, a list of token numbers or null",
                                path, key);
}

/* Reads the end token, which only raw token files need. An end token outside the vocabulary counts
 * as absent. */
static moert_status read_end(const char *path, const json_t *root, moert_model_config *config) {
    json_int_t begin, end;
    MOERT_TRY(read_token(path, root, "bos_token_id", &begin));
    MOERT_TRY(read_token(path, root, "eos_token_id", &end));
    if (end >= 0 && (uint64_t)end < config->vocabulary)
        config->end_token = (int32_t)end;
    return MOERT_OK;
}

/* A negative pad token counts from the end of the vocabulary, as in PyTorch; null means none. */
static moert_status read_pad(const char *path, const json_t *root, moert_model_config *config) {
    const json_int_t vocabulary = (json_int_t)config->vocabulary;
    json_t *standard = moert_field_default(config->family, "pad_token_id");
    const json_t *given = json_object_get(root, "pad_token_id"),
                 *value = given != NULL ? given : standard;
    const json_int_t pad = json_integer_value(value);
    const bool is_number = json_is_integer(value);
    json_decref(standard);
    config->pad_token = -1;
    if (value == NULL || json_is_null(given))
        return MOERT_OK;
    if (!is_number || pad < -vocabulary || pad >= vocabulary)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: pad_token_id is no token of the vocabulary of %zu; expected a "
                          "token's number or null",
                          path, config->vocabulary);
    config->pad_token = (int32_t)(pad < 0 ? vocabulary + pad : pad);
    return MOERT_OK;
}

/* Checks a key that has only one supported value in this family. */
static moert_status expect_text(const char *path, const json_t *root, const char *key,
                                const char *expected) {
    json_t *value = moert_field_value(root, key);
    const char *text = json_string_value(value);
    if (value != NULL && (text == NULL || strcmp(text, expected) != 0))
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s: %s is '%.64s'; only '%s' is supported", path, key,
                          text != NULL ? text : "(not a string)", expected);
    return MOERT_OK;
}

#define LISTED(name, value, slope) " " #name
#define ACTIVATIONS                MOERT_ACTIVATION_TABLE(LISTED)

static moert_status read_activation(const char *path, const json_t *root,
                                    moert_model_config *config) {
    const json_t *value = json_object_get(root, "hidden_act");
    const char *name = value == NULL ? "silu" : json_string_value(value);
    config->glu.activation = name == NULL ? -1 : moert_activation_find(name);
    if (config->glu.activation < 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s: hidden_act is '%.64s'; supported:" ACTIVATIONS,
                          path, name != NULL ? name : "(not a string)");
    return MOERT_OK;
}

/* Whether a block size is [128, 128]. */
static bool is_fp8_block(const json_t *size) {
    return json_array_size(size) == 2 && json_integer_value(json_array_get(size, 0)) == 128 &&
           json_integer_value(json_array_get(size, 1)) == 128;
}

/* Reads quantization_config, whose method weights.h must support. The tensors in the files show
 * which weights are plain. */
static moert_status read_quantization(const char *path, const json_t *root,
                                      moert_model_config *config) {
    const char *special = moert_family_of(config->family)->quant_method,
               *supported = special != NULL ? special : "fp8";
    json_t *quantization = moert_field_value(root, "quantization_config");
    if (quantization == NULL)
        return MOERT_OK;
    const char *method = json_string_value(moert_field_value(quantization, "quant_method"));
    if (method == NULL || strcmp(method, supported) != 0)
        return MOERT_FAIL(
            ERROR_UNSUPPORTED,
            "%s: quant_method of quantization_config is '%.64s'; supported are fp8 (e4m3 in blocks "
            "of 128x128) and, for gpt_oss, mxfp4; this model needs %s",
            path, method != NULL ? method : "(not a string)", supported);
    config->quant_method = supported;
    if (special != NULL)
        return MOERT_OK;
    MOERT_TRY(expect_text(path, quantization, "fmt", "e4m3"));
    if (!is_fp8_block(moert_field_value(quantization, "weight_block_size")))
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "%s: weight_block_size of quantization_config is not [128, 128], the "
                          "only one that is supported",
                          path);
    return MOERT_OK;
}

static moert_status check_router(const char *path, moert_router_options *router) {
    if (router->groups == 0) /* n_group is null */
        router->groups = router->kept_groups = 1;
    if (router->topk > router->experts)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: num_experts_per_tok is %zu, above the number of experts %zu", path,
                          router->topk, router->experts);
    if (router->score == MOERT_SCORE_SIGMOID && router->renormalise && router->topk == 1)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "%s: norm_topk_prob is true and num_experts_per_tok is 1, so that every "
                          "weight would be 1; supported are norm_topk_prob false or more experts",
                          path);
    if (router->experts % router->groups != 0)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: n_group is %zu, which does not divide the %zu of n_routed_experts",
                          path, router->groups, router->experts);
    if (router->kept_groups > router->groups)
        return MOERT_FAIL(ERROR_FORMAT, "%s: topk_group is %zu, above n_group %zu", path,
                          router->kept_groups, router->groups);
    size_t group = router->experts / router->groups;
    if (router->groups > 1 && group < router->group_best)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: n_group is %zu, which leaves %zu of %zu experts to a group; a group "
                          "needs at least %zu experts",
                          path, router->groups, group, router->experts, router->group_best);
    if (router->topk > group * router->kept_groups)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: num_experts_per_tok is %zu, above the %zu experts of topk_group %zu "
                          "groups",
                          path, router->topk, group * router->kept_groups, router->kept_groups);
    return MOERT_OK;
}

/* Sets the fields that are computed from other fields. */
static moert_status derive(const char *path, moert_model_config *config) {
    if (config->kv_heads == 0)
        config->kv_heads = config->heads;
    if (config->latent.kv_rank > 0 && config->kv_heads != config->heads)
        return MOERT_FAIL(
            ERROR_FORMAT,
            "%s: num_key_value_heads is %zu, but latent attention has one head of keys "
            "for each of num_attention_heads %zu",
            path, config->kv_heads, config->heads);
    if (config->head_size == 0 && config->hidden % config->heads == 0)
        config->head_size = config->hidden / config->heads;
    if (config->shared_experts > 0)
        config->shared_intermediate = config->shared_experts * config->intermediate;
    config->output_bias = config->attention_bias && moert_family_of(config->family)->output_bias;
    moert_config_set_rope_width(config->partial_rotary, config, &config->rope);
    if (config->window_rope.width == 0)
        moert_config_set_rope_width(0.0f, config, &config->window_rope);
    if (config->shared_gate && config->shared_intermediate == 0)
        return MOERT_FAIL(ERROR_FORMAT, "%s: shared_expert_intermediate_size is 0, below 1", path);
    if (config->shared_intermediate > MOERT_FIELD_SIZE_LIMIT)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: n_shared_experts times moe_intermediate_size is %zu, above %d", path,
                          config->shared_intermediate, MOERT_FIELD_SIZE_LIMIT);
    return check_router(path, &config->router);
}

/* Reads how DeepSeek-V2's groups of experts are chosen. */
static moert_status read_groups(const char *path, const json_t *root, moert_model_config *config) {
    const json_t *value = moert_field_value(root, "topk_method");
    const char *method = json_string_value(value);
    if (config->router.score == MOERT_SCORE_SIGMOID ||
        !moert_fields_have(config->family, "topk_method"))
        return MOERT_OK;
    config->router.group_best = 1;
    if (method != NULL && strcmp(method, "group_limited_greedy") == 0)
        return moert_field_value(root, "topk_group") != NULL
                   ? MOERT_OK
                   : MOERT_FAIL(ERROR_FORMAT, "%s: the key topk_group is missing", path);
    config->router.groups = config->router.kept_groups = 1;
    if (value == NULL || (method != NULL && strcmp(method, "greedy") == 0))
        return MOERT_OK;
    return MOERT_FAIL(ERROR_UNSUPPORTED,
                      "%s: topk_method is '%.64s'; supported are greedy and group_limited_greedy",
                      path, method != NULL ? method : "(not a string)");
}

static moert_status parse(const char *path, json_t *root, moert_model_config *config) {
    MOERT_TRY(read_family(path, root, config));
    MOERT_TRY(read_activation(path, root, config));
    MOERT_TRY(moert_fields_check(path, root, config->family));
    MOERT_TRY(moert_fields_read(path, root, config));
    MOERT_TRY(read_end(path, root, config));
    MOERT_TRY(read_pad(path, root, config));
    MOERT_TRY(read_groups(path, root, config));
    MOERT_TRY(moert_config_read_rope(path, root, config));
    MOERT_TRY(moert_config_read_layers(path, root, config));
    MOERT_TRY(moert_config_read_thetas(path, root, config));
    MOERT_TRY(read_quantization(path, root, config));
    return derive(path, config);
}

/* Replaces *text by the text without quantization_config, and without multi-token-prediction
 * layers. */
static moert_status describe_plain(const char *path, json_t *root, char **text) {
    static const char *const layers[] = {"num_nextn_predict_layers", "num_mtp_layers"};
    json_object_del(root, "quantization_config");
    for (size_t i = 0; i < MOERT_COUNT(layers); i++)
        if (json_object_get(root, layers[i]) != NULL)
            json_object_set_new(root, layers[i], json_integer(0));
    char *plain;
    MOERT_TRY(moert_json_text(path, root, JSON_INDENT(2) | JSON_REAL_PRECISION(15), &plain));
    free(*text);
    *text = plain;
    return MOERT_OK;
}

static moert_status read_file(const char *path, moert_model_config *config) {
    moert_status status = MOERT_OK;
    moert_model_config parsed = {0};
    char *text = NULL;
    json_t *root = NULL;
    MOERT_TRY(moert_read_text(path, CONFIG_LIMIT_BYTES, &text));
    MOERT_TRY_OR(free_text, moert_json_parse(path, "the model config", text, strlen(text), &root));
    MOERT_TRY_OR(free_root, parse(path, root, &parsed));
    if (parsed.quant_method != NULL || parsed.prediction_layers > 0)
        MOERT_TRY_OR(free_root, describe_plain(path, root, &text));
    *config = parsed;
    config->text = text;
    text = NULL;
free_root:
    json_decref(root);
free_text:
    free(text);
    return status;
}

moert_status moert_model_config_read(const char *path, moert_model_config *config) {
    mode_t mode;
    MOERT_TRY(moert_file_mode(path, true, &mode));
    if (!S_ISDIR(mode))
        return read_file(path, config);
    char *file = moert_text_format("%s/config.json", path);
    if (file == NULL)
        return MOERT_FAIL(ERROR_MEMORY, "%s: no memory for its path", path);
    moert_status status = read_file(file, config);
    free(file);
    return status;
}

void moert_model_config_free(moert_model_config *config) {
    if (config == NULL)
        return;
    free(config->text);
    config->text = NULL;
}
