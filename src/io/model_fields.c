/* The three tables of the keys of config.json, and the code that checks and reads them. */
#include "io/model_fields.h"
#include "base/memory.h"

#include <float.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/families.h"

#define BIT(family) (1U << MOERT_FAMILY_##family)
#define MIXTRAL     BIT(MIXTRAL)
#define QWEN2       BIT(QWEN2_MOE)
#define QWEN3       BIT(QWEN3_MOE)
#define OLMOE       BIT(OLMOE)
#define DEEPSEEK_V2 BIT(DEEPSEEK_V2)
#define DEEPSEEK_V3 BIT(DEEPSEEK_V3)
#define DEEPSEEK    (DEEPSEEK_V2 | DEEPSEEK_V3)
#define GLM         BIT(GLM4_MOE)
#define GPT_OSS     BIT(GPT_OSS)
#define EVERY       ((1U << MOERT_FAMILIES) - 1)

typedef enum field_kind {
    FIELD_SIZE,   /* size_t, smallest..MOERT_FIELD_SIZE_LIMIT */
    FIELD_FLOAT,  /* float, at least 0; above 0 if `smallest` is 1 */
    FIELD_DOUBLE, /* the same as double */
    FIELD_BOOL
} field_kind;

typedef struct config_field {
    const char *keys[4]; /* the first present key is read; null counts as absent */
    field_kind kind;
    size_t offset;
    int smallest;
    bool required, agree; /* agree: all present keys must have the same value */
    unsigned families;    /* bit mask of the families whose configs have the key */
} config_field;

#define FIELD(field) offsetof(moert_model_config, field)

/* clang-format off */
static const config_field fields[] = {
    {{"vocab_size"}, FIELD_SIZE, FIELD(vocabulary), 1, true, false, EVERY},
    {{"hidden_size"}, FIELD_SIZE, FIELD(hidden), 1, true, false, EVERY},
    {{"num_hidden_layers"}, FIELD_SIZE, FIELD(layers), 1, true, false, EVERY},
    {{"num_attention_heads"}, FIELD_SIZE, FIELD(heads), 1, true, false, EVERY},
    {{"num_key_value_heads"}, FIELD_SIZE, FIELD(kv_heads), 1, false, false, EVERY},
    {{"head_dim"}, FIELD_SIZE, FIELD(head_size), 1, false, false, EVERY},
    {{"max_position_embeddings"}, FIELD_SIZE, FIELD(max_positions), 1, false, false, EVERY},
    {{"moe_intermediate_size", "intermediate_size"},
                         FIELD_SIZE, FIELD(intermediate), 1, true, false,
                         QWEN2 | QWEN3 | DEEPSEEK | GLM},
    {{"intermediate_size", "moe_intermediate_size"},
                         FIELD_SIZE, FIELD(intermediate), 1, true, false,
                         MIXTRAL | OLMOE | GPT_OSS},
    {{"intermediate_size"},
                         FIELD_SIZE, FIELD(dense_intermediate), 1, false, false,
                         QWEN2 | QWEN3 | DEEPSEEK | GLM},
    {{"n_shared_experts"}, FIELD_SIZE, FIELD(shared_experts), 0, false, false, DEEPSEEK | GLM},
    {{"shared_expert_intermediate_size"},
                         FIELD_SIZE, FIELD(shared_intermediate), 1, false, false, QWEN2},
    {{"num_local_experts", "num_experts", "n_routed_experts"},
                         FIELD_SIZE, FIELD(router.experts), 1, true, true,
                         MIXTRAL | QWEN3 | GPT_OSS},
    {{"num_experts", "num_local_experts", "n_routed_experts"},
                         FIELD_SIZE, FIELD(router.experts), 1, true, true, QWEN2 | OLMOE},
    {{"n_routed_experts", "num_experts", "num_local_experts"},
                         FIELD_SIZE, FIELD(router.experts), 1, true, true, DEEPSEEK | GLM},
    {{"num_experts_per_tok", "experts_per_token"},
                         FIELD_SIZE, FIELD(router.topk), 1, true, true, EVERY},
    {{"norm_topk_prob"}, FIELD_BOOL, FIELD(router.renormalise), 0, false, false,
                         QWEN2 | QWEN3 | OLMOE | DEEPSEEK_V3 | GLM},
    {{"routed_scaling_factor"},
                         FIELD_FLOAT, FIELD(router.scale), 1, false, false, DEEPSEEK | GLM},
    {{"n_group"}, FIELD_SIZE, FIELD(router.groups), 1, false, false, DEEPSEEK | GLM},
    {{"topk_group"}, FIELD_SIZE, FIELD(router.kept_groups), 1, false, false, DEEPSEEK | GLM},
    {{"swiglu_limit"}, FIELD_FLOAT, FIELD(glu.limit), 1, false, false, GPT_OSS},
    {{"swiglu_alpha"}, FIELD_FLOAT, FIELD(glu.alpha), 1, false, false, GPT_OSS},
    {{"rms_norm_eps"}, FIELD_FLOAT, FIELD(norm_epsilon), 1, false, false, EVERY},
    {{"rope_theta"}, FIELD_DOUBLE, FIELD(rope.theta), 1, false, false, EVERY},
    {{"partial_rotary_factor"}, FIELD_FLOAT, FIELD(partial_rotary), 1, false, false, GLM},
    {{"rope_interleave"}, FIELD_BOOL, FIELD(rope.interleaved), 0, false, false, DEEPSEEK_V3},
    {{"initializer_range"}, FIELD_FLOAT, FIELD(initializer_range), 0, false, false, EVERY},
    {{"router_aux_loss_coef"}, FIELD_FLOAT, FIELD(aux_coefficient), 0, false, false,
                         MIXTRAL | QWEN2 | QWEN3 | OLMOE | GPT_OSS},
    {{"tie_word_embeddings"}, FIELD_BOOL, FIELD(tied_embeddings), 0, false, false, EVERY},
    {{"attention_bias"}, FIELD_BOOL, FIELD(attention_bias), 0, false, false,
                         QWEN3 | OLMOE | DEEPSEEK | GLM | GPT_OSS},
    {{"qkv_bias"}, FIELD_BOOL, FIELD(attention_bias), 0, false, false, QWEN2},
    {{"use_qk_norm"}, FIELD_BOOL, FIELD(qk_norm), 0, false, false, GLM},
    {{"q_lora_rank"}, FIELD_SIZE, FIELD(latent.q_rank), 1, false, false, DEEPSEEK},
    {{"kv_lora_rank"}, FIELD_SIZE, FIELD(latent.kv_rank), 1, false, false, DEEPSEEK},
    {{"qk_nope_head_dim"}, FIELD_SIZE, FIELD(latent.nope), 1, false, false, DEEPSEEK},
    {{"qk_rope_head_dim"}, FIELD_SIZE, FIELD(latent.rope), 1, false, false, DEEPSEEK},
    {{"v_head_dim"}, FIELD_SIZE, FIELD(latent.value), 1, false, false, DEEPSEEK},
    {{"clip_qkv"}, FIELD_FLOAT, FIELD(clip_qkv), 1, false, false, OLMOE},
    {{"sliding_window"}, FIELD_SIZE, FIELD(sliding_window), 0, false, false,
                         MIXTRAL | QWEN2 | QWEN3 | GPT_OSS},
    {{"decoder_sparse_step"}, FIELD_SIZE, FIELD(sparse_step), 1, false, false, QWEN2 | QWEN3},
    {{"num_nextn_predict_layers", "num_mtp_layers"},
                         FIELD_SIZE, FIELD(prediction_layers), 0, false, false, DEEPSEEK_V3 | GLM},
    {{"first_k_dense_replace"}, FIELD_SIZE, FIELD(first_dense), 0, false, false, DEEPSEEK | GLM},
};

/* Keys that model_config.c reads. */
static const struct {
    const char *key;
    unsigned families;
} other_keys[] = {
    {"model_type", EVERY},
    {"bos_token_id", EVERY},
    {"eos_token_id", EVERY},
    {"pad_token_id", EVERY},
    {"hidden_act", EVERY},
    {"rope_parameters", EVERY},
    {"rope_scaling", EVERY},
    {"quantization_config", EVERY},
    {"layer_types", EVERY},
    {"mlp_only_layers", QWEN2 | QWEN3},
    {"use_sliding_window", QWEN2 | QWEN3},
    {"max_window_layers", QWEN2 | QWEN3},
    {"scoring_func", DEEPSEEK | GLM},
    {"topk_method", DEEPSEEK | GLM},
};

/* Keys that change nothing that moert computes. */
static const char *const harmless[] = {
    "_attn_implementation", "_name_or_path", "architectures", "attn_implementation", "auto_map",
    "aux_loss_alpha", "dtype", "ep_size", "id2label", "initial_context_length",
    "label2id", "output_attentions", "output_hidden_states", "output_router_logits",
    "problem_type", "qk_head_dim", "return_dict", "seq_aux", "tokenizer_class", "torch_dtype",
    "transformers.js_config", "transformers_version", "unsloth_fixed", "unsloth_version",
    "use_cache",
};

/* Keys that must have this value: a number, or a bool if it is 0 or 1. */
static const struct {
    const char *key;
    int value;
    unsigned families;
} neutral[] = {
    {"add_cross_attention", 0, EVERY}, {"attention_dropout", 0, EVERY}, {"attn_pdrop", 0, EVERY},
    {"chunk_size_feed_forward", 0, EVERY}, {"dropout", 0, EVERY}, {"embd_pdrop", 0, EVERY},
    {"hidden_dropout", 0, EVERY}, {"hidden_dropout_prob", 0, EVERY}, {"is_decoder", 0, EVERY},
    {"is_encoder_decoder", 0, EVERY}, {"mlp_bias", 0, EVERY}, {"norm_topk_prob", 0, EVERY},
    {"moe_layer_freq", 1, EVERY}, {"pretraining_tp", 1, EVERY}, {"resid_pdrop", 0, EVERY},
    {"router_jitter_noise", 0, EVERY}, {"tie_encoder_decoder", 0, EVERY},
    {"torchscript", 0, EVERY},
    /* Qwen3-Coder says what Qwen3-MoE always and never has */
    {"qkv_bias", 0, QWEN3}, {"shared_expert_intermediate_size", 0, QWEN3},
    {"use_qk_norm", 1, QWEN3},
};
/* Keys whose value may be null, which transformers takes for "none" or for its default. */
static const struct {
    const char *key;
    unsigned families;
} nullable[] = {
    {"bos_token_id", EVERY}, {"clip_qkv", EVERY}, {"eos_token_id", EVERY},
    {"head_dim", MIXTRAL | OLMOE | QWEN2 | DEEPSEEK}, {"layer_types", EVERY},
    {"mlp_only_layers", EVERY}, {"n_group", DEEPSEEK}, {"norm_topk_prob", DEEPSEEK},
    {"num_experts_per_tok", DEEPSEEK}, {"num_key_value_heads", QWEN2 | OLMOE | DEEPSEEK},
    {"pad_token_id", EVERY}, {"pretraining_tp", DEEPSEEK}, {"attention_dropout", DEEPSEEK},
    {"q_lora_rank", EVERY}, {"quantization_config", EVERY}, {"rope_interleave", EVERY},
    {"rope_parameters", EVERY}, {"rope_scaling", EVERY}, {"rope_theta", EVERY},
    {"sliding_window", EVERY}, {"topk_group", DEEPSEEK}, {"v_head_dim", DEEPSEEK_V3},
    {"first_k_dense_replace", DEEPSEEK_V3}, {"num_nextn_predict_layers", EVERY},
    {"experts_per_token", EVERY}, {"partial_rotary_factor", EVERY},
};
/* clang-format on */

json_t *moert_field_value(const json_t *root, const char *key) {
    json_t *value = json_object_get(root, key);
    return json_is_null(value) ? NULL : value;
}

moert_status moert_field_size(const char *path, const char *key, const json_t *value, int smallest,
                              size_t *out) {
    if (!json_is_integer(value))
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is not an integer", path, key);
    json_int_t number = json_integer_value(value);
    if (number < smallest || number > MOERT_FIELD_SIZE_LIMIT)
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is %lld, not within %d..%d", path, key,
                          (long long)number, smallest, MOERT_FIELD_SIZE_LIMIT);
    *out = (size_t)number;
    return MOERT_OK;
}

moert_status moert_field_double(const char *path, const char *key, const json_t *value,
                                bool positive, double *out) {
    if (!json_is_number(value))
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is not a number", path, key);
    double number = json_number_value(value);
    if (!(number >= 0.0 && number <= FLT_MAX) || (positive && (float)number == 0.0f))
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is %g, but must be %s and a finite float32", path,
                          key, number, positive ? "positive" : "at least 0");
    *out = number;
    return MOERT_OK;
}

static moert_status store_float(const char *path, const char *key, const json_t *value,
                                bool positive, float *out) {
    double number;
    MOERT_TRY(moert_field_double(path, key, value, positive, &number));
    *out = (float)number;
    return MOERT_OK;
}

moert_status moert_field_bool(const char *path, const char *key, const json_t *value, bool *out) {
    if (!json_is_boolean(value))
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is neither true nor false", path, key);
    *out = json_is_true(value);
    return MOERT_OK;
}

static moert_status read_field(const char *path, const json_t *root, const config_field *field,
                               moert_model_config *config) {
    const char *key = NULL;
    json_t *value = NULL;
    for (size_t i = 0; i < 4 && field->keys[i] != NULL; i++) {
        json_t *other = moert_field_value(root, field->keys[i]);
        if (other == NULL)
            continue;
        if (value == NULL) {
            key = field->keys[i];
            value = other;
        } else if (field->agree && !json_equal(value, other)) {
            return MOERT_FAIL(ERROR_FORMAT, "%s: %s and %s are given and differ", path, key,
                              field->keys[i]);
        }
    }
    if (value == NULL && field->required)
        return MOERT_FAIL(ERROR_FORMAT, "%s: the key %s is missing", path, field->keys[0]);
    if (value == NULL)
        return MOERT_OK;
    void *target = (char *)config + field->offset;
    switch (field->kind) {
    case FIELD_SIZE:
        return moert_field_size(path, key, value, field->smallest, target);
    case FIELD_FLOAT:
        return store_float(path, key, value, field->smallest > 0, target);
    case FIELD_DOUBLE:
        return moert_field_double(path, key, value, field->smallest > 0, target);
    default:
        return moert_field_bool(path, key, value, target);
    }
}

/* ---- the keys that may be there ---- */

static bool is_used(const char *key, moert_family family) {
    for (size_t i = 0; i < MOERT_COUNT(fields); i++)
        for (size_t k = 0; k < 4 && fields[i].keys[k] != NULL; k++)
            if (fields[i].families >> family & 1 && strcmp(fields[i].keys[k], key) == 0)
                return true;
    for (size_t i = 0; i < MOERT_COUNT(other_keys); i++)
        if (other_keys[i].families >> family & 1 && strcmp(other_keys[i].key, key) == 0)
            return true;
    return false;
}

static bool is_harmless(const char *key) {
    for (size_t i = 0; i < MOERT_COUNT(harmless); i++)
        if (strcmp(harmless[i], key) == 0)
            return true;
    return false;
}

static bool equals(const json_t *value, int expected) {
    if (json_is_boolean(value))
        return expected <= 1 && json_is_true(value) == (expected == 1);
    return json_is_number(value) && json_number_value(value) == (double)expected;
}

static bool is_neutral(const char *key, moert_family family) {
    for (size_t i = 0; i < MOERT_COUNT(neutral); i++)
        if (strcmp(neutral[i].key, key) == 0 && neutral[i].families >> family & 1)
            return true;
    return false;
}

static bool may_be_null(const char *key, moert_family family) {
    for (size_t i = 0; i < MOERT_COUNT(nullable); i++)
        if (strcmp(nullable[i].key, key) == 0 && nullable[i].families >> family & 1)
            return true;
    return !is_used(key, family) && !is_neutral(key, family);
}

static moert_status check_key(const char *path, const char *key, const json_t *value,
                              moert_family family) {
    if (json_is_null(value) && !may_be_null(key, family))
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is null; without the key it has its default", path,
                          key);
    if (json_is_null(value) || is_used(key, family) || is_harmless(key))
        return MOERT_OK;
    for (size_t i = 0; i < MOERT_COUNT(neutral); i++)
        if (strcmp(neutral[i].key, key) == 0 && neutral[i].families >> family & 1)
            return equals(value, neutral[i].value)
                       ? MOERT_OK
                       : MOERT_FAIL(ERROR_UNSUPPORTED,
                                    "%s: %s has a value other than %d, the only one that is "
                                    "supported",
                                    path, key, neutral[i].value);
    return MOERT_FAIL(
        ERROR_UNSUPPORTED,
        "%s: moert does not know the key %.64s of a %s config; remove it if the model "
        "does not depend on it",
        path, key, moert_family_of(family)->model_type);
}

moert_status moert_fields_check(const char *path, json_t *root, moert_family family) {
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        MOERT_TRY(check_key(path, key, value, family));
    }
    return MOERT_OK;
}

/* ---- writing ---- */

json_t *moert_field_number(double value) {
    char text[32];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if ((double)strtof(text, NULL) == value || strtod(text, NULL) == value)
            break;
    }
    return json_real(strtod(text, NULL));
}

static json_t *field_json(const config_field *field, const moert_model_config *config) {
    const void *value = (const char *)config + field->offset;
    size_t size;
    switch (field->kind) {
    case FIELD_SIZE:
        size = *(const size_t *)value;
        /* sizes that are not given are written as null */
        if (size == 0 && (field->smallest > 0 || field->offset == FIELD(sliding_window)))
            return json_null();
        return json_integer((json_int_t)size);
    case FIELD_FLOAT:
        if (*(const float *)value == 0.0f && field->smallest > 0)
            return json_null();
        return moert_field_number((double)*(const float *)value);
    case FIELD_DOUBLE:
        return moert_field_number(*(const double *)value);
    default:
        return json_boolean(*(const bool *)value);
    }
}

/* Fields of rotary positions are written elsewhere. Without dense layers their size is left out,
 * as Hugging Face transformers refuses null. */
static bool is_written(const config_field *field, const moert_model_config *config) {
    return (field->families >> config->family & 1) && field->offset != FIELD(rope.theta) &&
           field->offset != FIELD(partial_rotary) &&
           (field->offset != FIELD(dense_intermediate) || config->dense_intermediate > 0);
}

bool moert_fields_write(const moert_model_config *config, json_t *root) {
    bool whole = true;
    for (size_t i = 0; i < MOERT_COUNT(fields); i++)
        if (is_written(&fields[i], config))
            whole &=
                json_object_set_new(root, fields[i].keys[0], field_json(&fields[i], config)) == 0;
    return whole;
}

moert_status moert_fields_read(const char *path, const json_t *root, moert_model_config *config) {
    for (size_t i = 0; i < MOERT_COUNT(fields); i++)
        if (fields[i].families >> config->family & 1)
            MOERT_TRY(read_field(path, root, &fields[i], config));
    return MOERT_OK;
}
