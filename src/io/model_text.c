/* Checks the config of a whole language model, and writes the config.json of a new model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "io/families.h"
#include "io/internal.h"
#include "io/model_fields.h"

#define FAIL_CONFIG(code, format, ...) MOERT_FAIL(code, "model config: " format, ##__VA_ARGS__)

static moert_status check_latent(const moert_latent_sizes *s) {
    const struct {
        const char *key;
        size_t value, least, most;
    } sizes[] = {{"qk_rope_head_dim", s->rope, 2, 512},
                 {"qk_nope_head_dim + qk_rope_head_dim", s->nope + s->rope, 3, 512},
                 {"v_head_dim", s->value, 1, 512}};
    for (size_t i = 0; i < MOERT_COUNT(sizes); i++)
        if (sizes[i].value < sizes[i].least || sizes[i].value > sizes[i].most)
            return FAIL_CONFIG(ERROR_FORMAT, "%s is %zu; %zu to %zu are supported", sizes[i].key,
                               sizes[i].value, sizes[i].least, sizes[i].most);
    if (s->rope % 2 != 0)
        return FAIL_CONFIG(ERROR_FORMAT,
                           "qk_rope_head_dim is %zu; rotary positions need an even one", s->rope);
    return MOERT_OK;
}

static moert_status check_rope(const moert_model_config *config) {
    const moert_status status = moert_rope_scheme_check(&config->rope);
    return status == MOERT_OK ? status : FAIL_CONFIG(ERROR_FORMAT, "%s", moert_last_error());
}

static moert_status check_sizes(const moert_model_config *config) {
    if (config->latent.kv_rank > 0) {
        MOERT_TRY(check_latent(&config->latent));
        return check_rope(config);
    }
    if (config->head_size == 0)
        return FAIL_CONFIG(
            ERROR_FORMAT,
            "head_dim is absent and num_attention_heads %zu does not divide hidden_size %zu",
            config->heads, config->hidden);
    if (config->rope.width == 0 || config->rope.width % 2 != 0)
        return FAIL_CONFIG(
            ERROR_FORMAT,
            "%zu elements of a head of %zu (head_dim) rotate; rotary positions need an even "
            "number",
            config->rope.width, config->head_size);
    if (config->kv_heads == 0 || config->heads % config->kv_heads != 0)
        return FAIL_CONFIG(
            ERROR_FORMAT,
            "num_key_value_heads is %zu, which does not divide num_attention_heads %zu",
            config->kv_heads, config->heads);
    return check_rope(config);
}

moert_status moert_model_config_check_length(const moert_model_config *config, size_t length) {
    if (config->indexer.topk > 0 && length > config->indexer.topk)
        return MOERT_FAIL(
            ERROR_USAGE,
            "sequences of %zu tokens exceed the model's index_topk, %zu: moert attends "
            "to all keys, as a sparse indexer does up to this length",
            length, config->indexer.topk);
    if (length <= config->max_positions)
        return MOERT_OK;
    return MOERT_FAIL(ERROR_USAGE,
                      "sequences of %zu tokens exceed the model's max_position_embeddings, %zu",
                      length, config->max_positions);
}

moert_status moert_model_config_check_model(const moert_model_config *config) {
    if (config->layers > MOERT_LAYERS_MOST)
        return FAIL_CONFIG(ERROR_UNSUPPORTED, "num_hidden_layers is %zu, above %d", config->layers,
                           MOERT_LAYERS_MOST);
    if (config->memory.loss_chunk % MOERT_LOSS_CHUNK_MULTIPLE != 0)
        return MOERT_FAIL(ERROR_USAGE, "--loss-chunk %zu: expected a multiple of %d tokens, or 0",
                          config->memory.loss_chunk, MOERT_LOSS_CHUNK_MULTIPLE);
    if (config->dense_intermediate == 0 && moert_layer_set_any(&config->dense_layers))
        return FAIL_CONFIG(ERROR_FORMAT, "the key intermediate_size of dense layers is missing");
    return check_sizes(config);
}

/* The rotary scheme as Hugging Face's transformers 5 writes it. */
static json_t *rope_parameters(const moert_model_config *config) {
    const moert_rope_scheme *r = &config->rope;
    json_t *root =
        json_pack("{s:o, s:s}", "rope_theta", moert_field_number(r->theta), "rope_type", "default");
    if (config->partial_rotary > 0.0f)
        json_object_set_new(root, "partial_rotary_factor",
                            moert_field_number((double)config->partial_rotary));
    return root;
}

/* The layers as words: `in` for those of a set, `out` for the others. */
static json_t *layer_words(const moert_model_config *config, const moert_layer_set *set,
                           const char *in, const char *out) {
    json_t *list = json_array();
    for (size_t l = 0; l < config->layers; l++)
        json_array_append_new(list, json_string(moert_layer_set_has(set, l) ? in : out));
    return list;
}

/* The layers of a set, as a list. */
static json_t *layer_list(const moert_model_config *config, const moert_layer_set *set) {
    json_t *list = json_array();
    for (size_t l = 0; l < config->layers; l++)
        if (moert_layer_set_has(set, l))
            json_array_append_new(list, json_integer((json_int_t)l));
    return list;
}

static json_t *token(int32_t number) {
    return number >= 0 ? json_integer(number) : json_null();
}

/* The keys that all families share and that have no field in `config`, with the defaults of Hugging
 * Face's transformers. */
static json_t *shared_keys(const moert_model_config *config) {
    return json_pack("{s:[s], s:f, s:n, s:s, s:o, s:s, s:s, s:b, s:o, s:o, s:b}", "architectures",
                     moert_family_of(config->family)->architecture, "attention_dropout", 0.0,
                     "bos_token_id", "dtype", "float32", "eos_token_id", token(config->end_token),
                     "hidden_act", moert_activation_name(config->glu.activation), "model_type",
                     moert_family_of(config->family)->model_type, "output_router_logits", 0,
                     "pad_token_id", token(config->pad_token), "rope_parameters",
                     rope_parameters(config), "use_cache", 1);
}

/* Adds the keys of the config's family that no field of moert_model_config holds. */
static bool add_family_keys(const moert_model_config *config, json_t *root) {
    const struct {
        const char *key;
        json_t *value;
    } keys[] = {{"router_jitter_noise", json_real(0.0)},
                {"mlp_only_layers", layer_list(config, &config->dense_layers)},
                {"use_sliding_window", json_boolean(config->sliding_window > 0)},
                {"layer_types",
                 layer_words(config, &config->windowed, "sliding_attention", "full_attention")},
                {"mlp_layer_types", layer_words(config, &config->dense_layers, "dense", "sparse")}};
    bool whole = true;
    for (size_t i = 0; i < MOERT_COUNT(keys); i++)
        if (moert_fields_have(config->family, keys[i].key))
            whole &= json_object_set(root, keys[i].key, keys[i].value) == 0;
    for (size_t i = 0; i < MOERT_COUNT(keys); i++)
        json_decref(keys[i].value);
    return whole;
}

moert_status moert_model_config_text(const moert_model_config *config, char **text) {
    MOERT_TRY(moert_model_config_check_model(config));
    json_t *root = shared_keys(config);
    const bool whole =
        root != NULL && moert_fields_write(config, root) && add_family_keys(config, root);
    const moert_status status =
        moert_json_text("config.json", whole ? root : NULL,
                        JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(15), text);
    json_decref(root);
    return status;
}

moert_status moert_model_config_retype(const char *text, const char *dtype, char **changed) {
    static const char *const keys[] = {"dtype", "torch_dtype"}; /* key of Hugging Face's
                                                                   transformers 5, and of its
                                                                   older versions */
    json_t *root;
    bool named = false, whole = true;
    MOERT_TRY(moert_json_parse("config.json", "the model config", text, strlen(text), &root));
    for (size_t i = 0; i < MOERT_COUNT(keys); i++)
        if (json_object_get(root, keys[i]) != NULL || (i + 1 == MOERT_COUNT(keys) && !named)) {
            whole &= json_object_set_new(root, keys[i], json_string(dtype)) == 0;
            named = true;
        }
    const moert_status status = moert_json_text("config.json", whole ? root : NULL,
                                                JSON_INDENT(2) | JSON_REAL_PRECISION(15), changed);
    json_decref(root);
    return status;
}
