/* Checks the config of a whole language model, and writes the config.json of a new one. */
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "io/internal.h"
#include "io/model_config.h"

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

static moert_status check_sizes(const moert_model_config *config) {
    if (config->latent.kv_rank > 0)
        return check_latent(&config->latent);
    if (config->head_size == 0)
        return FAIL_CONFIG(
            ERROR_FORMAT,
            "head_dim is absent and num_attention_heads %zu does not divide hidden_size %zu",
            config->heads, config->hidden);
    if (config->head_size % 2 != 0)
        return FAIL_CONFIG(ERROR_FORMAT, "the head size is %zu; rotary positions need an even one",
                           config->head_size);
    if (config->kv_heads == 0 || config->heads % config->kv_heads != 0)
        return FAIL_CONFIG(
            ERROR_FORMAT,
            "num_key_value_heads is %zu, which does not divide num_attention_heads %zu",
            config->kv_heads, config->heads);
    return MOERT_OK;
}

moert_status moert_model_config_check_length(const moert_model_config *config, size_t length) {
    if (length <= config->max_positions)
        return MOERT_OK;
    return MOERT_FAIL(ERROR_USAGE,
                      "sequences of %zu tokens exceed the model's max_position_embeddings, %zu",
                      length, config->max_positions);
}

moert_status moert_model_config_check_model(const moert_model_config *config) {
    if (config->family != MOERT_FAMILY_MIXTRAL && config->family != MOERT_FAMILY_QWEN3_MOE)
        return FAIL_CONFIG(ERROR_UNSUPPORTED,
                           "only mixtral and qwen3_moe are whole language models here; of other "
                           "families the MoE layers are supported");
    if (config->sliding_window > 0)
        return FAIL_CONFIG(ERROR_UNSUPPORTED,
                           "sliding_window is %zu; only null (full attention) is supported",
                           config->sliding_window);
    if (config->rope_scaled)
        return FAIL_CONFIG(ERROR_UNSUPPORTED,
                           "rotary positions are scaled; only the rope_type default is supported");
    if (config->attention_bias && config->latent.kv_rank == 0)
        return FAIL_CONFIG(ERROR_UNSUPPORTED, "attention_bias is true; only false is supported");
    if (config->dense_layers > 0)
        return FAIL_CONFIG(ERROR_UNSUPPORTED,
                           "mlp_only_layers lists %zu dense layers; only MoE layers are supported",
                           config->dense_layers);
    if (config->sparse_step > 1)
        return FAIL_CONFIG(ERROR_UNSUPPORTED,
                           "decoder_sparse_step is %zu; only 1 (every layer is MoE) "
                           "is supported",
                           config->sparse_step);
    return check_sizes(config);
}

/* The shortest decimal number that reads back as this float, such as 1e-05 instead of
 * 9.99999975e-06. */
static json_t *shortest(float value) {
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            break;
    }
    return json_real(strtod(text, NULL));
}

static json_t *size_value(size_t value) {
    return json_integer((json_int_t)value);
}

/* Keys of both families. Keys without a field in `config` get the defaults of transformers. */
static json_t *shared_keys(const moert_model_config *config) {
    return json_pack(
        "{s:[s], s:f, s:n, s:s, s:n, s:s, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o, s:b, s:n, "
        "s:o, s:{s:o, s:s}, s:o, s:n, s:b, s:b, s:o}",
        "architectures",
        config->family == MOERT_FAMILY_MIXTRAL ? "MixtralForCausalLM" : "Qwen3MoeForCausalLM",
        "attention_dropout", 0.0, "bos_token_id", "dtype", "float32", "eos_token_id", "hidden_act",
        moert_activation_name(config->glu.activation), "hidden_size", size_value(config->hidden),
        "initializer_range", shortest(config->initializer_range), "max_position_embeddings",
        size_value(config->max_positions), "model_type",
        config->family == MOERT_FAMILY_MIXTRAL ? "mixtral" : "qwen3_moe", "num_attention_heads",
        size_value(config->heads), "num_experts_per_tok", size_value(config->router.topk),
        "num_hidden_layers", size_value(config->layers), "num_key_value_heads",
        size_value(config->kv_heads), "num_local_experts", size_value(config->router.experts),
        "output_router_logits", 0, "pad_token_id", "rms_norm_eps", shortest(config->norm_epsilon),
        "rope_parameters", "rope_theta", shortest(config->rope_theta), "rope_type", "default",
        "router_aux_loss_coef", shortest(config->aux_coefficient), "sliding_window",
        "tie_word_embeddings", config->tied_embeddings, "use_cache", 1, "vocab_size",
        size_value(config->vocabulary));
}

static json_t *family_keys(const moert_model_config *config) {
    json_t *intermediate = size_value(config->intermediate);
    json_t *head_size = size_value(config->head_size);
    if (config->family == MOERT_FAMILY_MIXTRAL)
        return json_pack("{s:o, s:o, s:f}", "head_dim", head_size, "intermediate_size",
                         intermediate, "router_jitter_noise", 0.0);
    return json_pack("{s:b, s:i, s:o, s:O, s:[], s:o, s:b, s:b}", "attention_bias", 0,
                     "decoder_sparse_step", 1, "head_dim", head_size, "intermediate_size",
                     intermediate, "mlp_only_layers", "moe_intermediate_size", intermediate,
                     "norm_topk_prob", config->router.renormalise, "use_sliding_window", 0);
}

moert_status moert_model_config_text(const moert_model_config *config, char **text) {
    MOERT_TRY(moert_model_config_check_model(config));
    json_t *root = shared_keys(config), *more = family_keys(config);
    const bool whole = root != NULL && more != NULL && json_object_update(root, more) == 0;
    const moert_status status =
        moert_json_text("config.json", whole ? root : NULL,
                        JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(9), text);
    json_decref(root);
    json_decref(more);
    return status;
}
