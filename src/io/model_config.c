/*
 * Reads Hugging Face config.json. A table holds each family's fixed properties and the defaults of
 * absent keys (those of transformers 5). The table in model_fields.c describes the keys that are
 * present. Functions here read the few keys that do not fit a table.
 */
#include "base/files.h"
#include "io/model_config.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "args/activations.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/durable.h"
#include "io/internal.h"
#include "io/model_fields.h"

enum { CONFIG_LIMIT_BYTES = 16 << 20 };

#define ROUTER(score, renormalise, scale, groups, kept)                                            \
    { sizeof(moert_router_options), 0, 0, MOERT_SCORE_##score, renormalise, scale, groups, kept, 2 }

/* The fixed properties and defaults of each family. */
static const struct {
    const char *model_type;
    moert_model_config standard;
} families[] = {
    {"mixtral",
     {.family = MOERT_FAMILY_MIXTRAL,
      .max_positions = 131072,
      .norm_epsilon = 1e-5f,
      .rope_theta = 1e6f,
      .aux_coefficient = 0.001f,
      .router = ROUTER(SOFTMAX, true, 1.0f, 1, 1),
      .glu = MOERT_GLU_SWIGLU}},
    {"qwen3_moe",
     {.family = MOERT_FAMILY_QWEN3_MOE,
      .max_positions = 32768,
      .norm_epsilon = 1e-6f,
      .rope_theta = 1e4f,
      .aux_coefficient = 0.001f,
      .qk_norm = true,
      .router = ROUTER(SOFTMAX, false, 1.0f, 1, 1),
      .glu = MOERT_GLU_SWIGLU}},
    {"olmoe",
     {.family = MOERT_FAMILY_OLMOE,
      .max_positions = 4096,
      .norm_epsilon = 1e-5f,
      .rope_theta = 1e4f,
      .aux_coefficient = 0.01f,
      .router = ROUTER(SOFTMAX, false, 1.0f, 1, 1),
      .glu = MOERT_GLU_SWIGLU}},
    {"deepseek_v3",
     {.family = MOERT_FAMILY_DEEPSEEK_V3,
      .max_positions = 4096,
      .norm_epsilon = 1e-6f,
      .rope_theta = 1e4f,
      .router = ROUTER(SIGMOID, true, 2.5f, 8, 4),
      .correction_bias = true,
      .shared_intermediate = 1, /* the number of shared experts; derive multiplies it by I */
      .glu = MOERT_GLU_SWIGLU}},
    {"gpt_oss",
     {.family = MOERT_FAMILY_GPT_OSS,
      .max_positions = 131072,
      .norm_epsilon = 1e-5f,
      .rope_theta = 150000.0f,
      .aux_coefficient = 0.001f,
      .attention_bias = true,
      .router = ROUTER(SOFTMAX_TOPK, false, 1.0f, 1, 1),
      .router_bias = true,
      .expert_biases = true,
      .glu = MOERT_GLU_GPT_OSS}},
};

static moert_status read_family(const char *path, const json_t *root, moert_model_config *config) {
    json_t *value = moert_field_value(root, "model_type");
    const char *type = json_string_value(value);
    if (type == NULL)
        return MOERT_FAIL(ERROR_FORMAT, "%s: the key model_type is %s", path,
                          value == NULL ? "missing" : "not a string");
    for (size_t i = 0; i < MOERT_COUNT(families); i++)
        if (strcmp(families[i].model_type, type) == 0) {
            *config = families[i].standard;
            config->initializer_range = 0.02f;
            return MOERT_OK;
        }
    return MOERT_FAIL(ERROR_UNSUPPORTED,
                      "%s: model_type is '%.64s'; supported are mixtral, qwen3_moe, olmoe, "
                      "deepseek_v3 and gpt_oss",
                      path, type);
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
    const json_t *value = moert_field_value(root, "hidden_act");
    const char *name = value == NULL ? "silu" : json_string_value(value);
    config->glu.activation = name == NULL ? -1 : moert_activation_find(name);
    if (config->glu.activation < 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s: hidden_act is '%.64s'; supported:" ACTIVATIONS,
                          path, name != NULL ? name : "(not a string)");
    return MOERT_OK;
}

/* Reads theta and the type from rope_parameters (transformers 5) or rope_scaling (older
 * versions). */
static moert_status read_rope(const char *path, const json_t *root, moert_model_config *config) {
    static const char *const keys[] = {"rope_parameters", "rope_scaling"};
    for (size_t i = 0; i < 2; i++) {
        json_t *rope = moert_field_value(root, keys[i]);
        if (rope == NULL)
            continue;
        if (!json_is_object(rope))
            return MOERT_FAIL(ERROR_FORMAT, "%s: %s is not an object", path, keys[i]);
        json_t *theta = moert_field_value(rope, "rope_theta"),
               *type = moert_field_value(rope, "rope_type");
        if (type == NULL)
            type = moert_field_value(rope, "type");
        if (theta != NULL)
            MOERT_TRY(moert_field_float(path, "rope_theta", theta, true, &config->rope_theta));
        if (type != NULL && !json_is_string(type))
            return MOERT_FAIL(ERROR_FORMAT, "%s: the rope_type in %s is not a string", path,
                              keys[i]);
        if (type != NULL && strcmp(json_string_value(type), "default") != 0)
            config->rope_scaled = true;
    }
    return MOERT_OK;
}

/* Qwen3: reads the number of dense layers, and the switch that enables the sliding window. */
static moert_status read_layers(const char *path, const json_t *root, moert_model_config *config) {
    if (config->family != MOERT_FAMILY_QWEN3_MOE)
        return MOERT_OK;
    bool window = false;
    json_t *use = moert_field_value(root, "use_sliding_window");
    json_t *dense = moert_field_value(root, "mlp_only_layers");
    if (use != NULL)
        MOERT_TRY(moert_field_bool(path, "use_sliding_window", use, &window));
    if (!window)
        config->sliding_window = 0;
    if (dense != NULL && !json_is_array(dense))
        return MOERT_FAIL(ERROR_FORMAT, "%s: mlp_only_layers is not a list", path);
    config->dense_layers = json_array_size(dense);
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
    const char *supported = moert_experts_are_fused(config) ? "mxfp4" : "fp8";
    json_t *quantization = moert_field_value(root, "quantization_config");
    if (quantization == NULL)
        return MOERT_OK;
    const char *method = json_string_value(moert_field_value(quantization, "quant_method"));
    if (method == NULL || strcmp(method, supported) != 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "%s: quant_method of quantization_config is '%.64s'; supported are fp8 "
                          "(e4m3 in blocks of 128x128) and, for gpt_oss, mxfp4: here %s",
                          path, method != NULL ? method : "(not a string)", supported);
    config->quant_method = supported;
    if (moert_experts_are_fused(config))
        return MOERT_OK;
    MOERT_TRY(expect_text(path, quantization, "fmt", "e4m3"));
    if (!is_fp8_block(moert_field_value(quantization, "weight_block_size")))
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "%s: weight_block_size of quantization_config is not [128, 128], the "
                          "only one that is supported",
                          path);
    return MOERT_OK;
}

static moert_status check_router(const char *path, const moert_router_options *router) {
    if (router->topk > router->experts)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: num_experts_per_tok is %zu, above the number of experts %zu", path,
                          router->topk, router->experts);
    if (router->experts % router->groups != 0)
        return MOERT_FAIL(ERROR_FORMAT, "%s: n_group is %zu, which does not divide %zu experts",
                          path, router->groups, router->experts);
    if (router->kept_groups > router->groups)
        return MOERT_FAIL(ERROR_FORMAT, "%s: topk_group is %zu, above n_group %zu", path,
                          router->kept_groups, router->groups);
    size_t group = router->experts / router->groups;
    if (router->groups > 1 && group < 2)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: n_group is %zu, which leaves 1 of %zu experts to a group; a group "
                          "needs 2",
                          path, router->groups, router->experts);
    if (router->topk > group * router->kept_groups)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: num_experts_per_tok is %zu, above the %zu experts of topk_group %zu "
                          "groups",
                          path, router->topk, group * router->kept_groups, router->kept_groups);
    return MOERT_OK;
}

/* Sets fields that follow from others. */
static moert_status derive(const char *path, moert_model_config *config) {
    if (config->kv_heads == 0)
        config->kv_heads = config->heads;
    if (config->head_size == 0 && config->hidden % config->heads == 0)
        config->head_size = config->hidden / config->heads;
    config->shared_intermediate *= config->intermediate;
    if (config->shared_intermediate > MOERT_FIELD_SIZE_LIMIT)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: n_shared_experts times moe_intermediate_size is %zu, above %d", path,
                          config->shared_intermediate, MOERT_FIELD_SIZE_LIMIT);
    return check_router(path, &config->router);
}

static moert_status parse(const char *path, const json_t *root, moert_model_config *config) {
    MOERT_TRY(read_family(path, root, config));
    MOERT_TRY(read_activation(path, root, config));
    if (config->family == MOERT_FAMILY_DEEPSEEK_V3) {
        MOERT_TRY(expect_text(path, root, "scoring_func", "sigmoid"));
        MOERT_TRY(expect_text(path, root, "topk_method", "noaux_tc"));
    }
    if (json_is_null(json_object_get(root, "n_group"))) /* null means no groups; absent, the
                                                           default */
        config->router.groups = config->router.kept_groups = 1;
    MOERT_TRY(moert_fields_read(path, root, config));
    MOERT_TRY(read_rope(path, root, config));
    MOERT_TRY(read_layers(path, root, config));
    MOERT_TRY(read_quantization(path, root, config));
    return derive(path, config);
}

/* Replaces *text by the text without quantization_config. */
static moert_status describe_plain(const char *path, json_t *root, char **text) {
    json_object_del(root, "quantization_config");
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
    if (parsed.quant_method != NULL)
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
