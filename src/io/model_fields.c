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
    FIELD_DOUBLE, /* like FIELD_FLOAT, but stored as double */
    FIELD_BOOL
} field_kind;

typedef enum field_need { OPTIONAL, REQUIRED, AGREED } field_need;

typedef struct config_field {
    const char *keys[4]; /* the first present key is read; null counts as absent */
    field_kind kind;
    size_t offset;
    int smallest;
    field_need need;   /* AGREED: required, and all present keys must have the same value */
    unsigned families; /* bit mask of the families (moert_family_row.keys) that have the key */
} config_field;

#define FIELD(field) offsetof(moert_model_config, field)
#define KEYS(kind, field, smallest, need, families, ...)                                           \
    { {__VA_ARGS__}, FIELD_##kind, FIELD(field), smallest, need, families }

/* clang-format off */
static const config_field fields[] = {
    KEYS(SIZE, vocabulary, 1, REQUIRED, EVERY, "vocab_size"),
    KEYS(SIZE, hidden, 1, REQUIRED, EVERY, "hidden_size"),
    KEYS(SIZE, layers, 1, REQUIRED, EVERY, "num_hidden_layers"),
    KEYS(SIZE, heads, 1, REQUIRED, EVERY, "num_attention_heads"),
    KEYS(SIZE, kv_heads, 1, OPTIONAL, EVERY, "num_key_value_heads"),
    KEYS(SIZE, head_size, 1, OPTIONAL, EVERY, "head_dim"),
    KEYS(SIZE, max_positions, 1, OPTIONAL, EVERY, "max_position_embeddings"),
    KEYS(SIZE, intermediate, 1, REQUIRED, QWEN2 | QWEN3 | DEEPSEEK | GLM,
         "moe_intermediate_size", "intermediate_size"),
    KEYS(SIZE, intermediate, 1, REQUIRED, MIXTRAL | OLMOE | GPT_OSS,
         "intermediate_size", "moe_intermediate_size"),
    KEYS(SIZE, dense_intermediate, 1, OPTIONAL, QWEN2 | QWEN3 | DEEPSEEK | GLM,
         "intermediate_size"),
    KEYS(SIZE, shared_experts, 0, OPTIONAL, DEEPSEEK | GLM, "n_shared_experts"),
    KEYS(SIZE, shared_intermediate, 1, OPTIONAL, QWEN2, "shared_expert_intermediate_size"),
    KEYS(SIZE, router.experts, 1, AGREED, MIXTRAL | QWEN3 | GPT_OSS,
         "num_local_experts", "num_experts", "n_routed_experts"),
    KEYS(SIZE, router.experts, 1, AGREED, QWEN2 | OLMOE,
         "num_experts", "num_local_experts", "n_routed_experts"),
    KEYS(SIZE, router.experts, 1, AGREED, DEEPSEEK | GLM,
         "n_routed_experts", "num_experts", "num_local_experts"),
    KEYS(SIZE, router.topk, 1, AGREED, EVERY, "num_experts_per_tok", "experts_per_token"),
    KEYS(BOOL, router.renormalise, 0, OPTIONAL, QWEN2 | QWEN3 | OLMOE | DEEPSEEK_V3 | GLM,
         "norm_topk_prob"),
    KEYS(FLOAT, router.scale, 1, OPTIONAL, DEEPSEEK | GLM, "routed_scaling_factor"),
    KEYS(SIZE, router.groups, 1, OPTIONAL, DEEPSEEK | GLM, "n_group"),
    KEYS(SIZE, router.kept_groups, 1, OPTIONAL, DEEPSEEK | GLM, "topk_group"),
    KEYS(FLOAT, glu.limit, 1, OPTIONAL, GPT_OSS, "swiglu_limit"),
    KEYS(FLOAT, glu.alpha, 1, OPTIONAL, GPT_OSS, "swiglu_alpha"),
    KEYS(FLOAT, norm_epsilon, 1, OPTIONAL, EVERY, "rms_norm_eps"),
    KEYS(DOUBLE, rope.theta, 1, OPTIONAL, EVERY, "rope_theta"),
    KEYS(FLOAT, partial_rotary, 1, OPTIONAL, GLM, "partial_rotary_factor"),
    KEYS(BOOL, rope.interleaved, 0, OPTIONAL, DEEPSEEK_V3, "rope_interleave"),
    KEYS(FLOAT, initializer_range, 0, OPTIONAL, EVERY, "initializer_range"),
    KEYS(FLOAT, aux_coefficient, 0, OPTIONAL, MIXTRAL | QWEN2 | QWEN3 | OLMOE | GPT_OSS,
         "router_aux_loss_coef"),
    KEYS(BOOL, tied_embeddings, 0, OPTIONAL, EVERY, "tie_word_embeddings"),
    KEYS(BOOL, attention_bias, 0, OPTIONAL, QWEN3 | OLMOE | DEEPSEEK | GLM | GPT_OSS,
         "attention_bias"),
    KEYS(BOOL, attention_bias, 0, OPTIONAL, QWEN2, "qkv_bias"),
    KEYS(BOOL, qk_norm, 0, OPTIONAL, GLM, "use_qk_norm"),
    KEYS(SIZE, latent.q_rank, 1, OPTIONAL, DEEPSEEK, "q_lora_rank"),
    KEYS(SIZE, latent.kv_rank, 1, OPTIONAL, DEEPSEEK, "kv_lora_rank"),
    KEYS(SIZE, latent.nope, 1, OPTIONAL, DEEPSEEK, "qk_nope_head_dim"),
    KEYS(SIZE, latent.rope, 1, OPTIONAL, DEEPSEEK, "qk_rope_head_dim"),
    KEYS(SIZE, latent.value, 1, OPTIONAL, DEEPSEEK, "v_head_dim"),
    KEYS(FLOAT, clip_qkv, 1, OPTIONAL, OLMOE, "clip_qkv"),
    KEYS(SIZE, sliding_window, 0, OPTIONAL, MIXTRAL | QWEN2 | QWEN3 | GPT_OSS, "sliding_window"),
    KEYS(SIZE, sparse_step, 1, OPTIONAL, QWEN2 | QWEN3, "decoder_sparse_step"),
    KEYS(SIZE, prediction_layers, 0, OPTIONAL, DEEPSEEK_V3 | GLM,
         "num_nextn_predict_layers", "num_mtp_layers"),
    KEYS(SIZE, first_dense, 0, OPTIONAL, DEEPSEEK | GLM, "first_k_dense_replace"),
};

typedef struct listed_key {
    const char *key;
    unsigned families;
} listed_key;

/* Keys that model_config.c reads. */
static const listed_key other_keys[] = {
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

/* Keys that must be 0 or false, and those that must be 1 or true. The QWEN3 rows are keys of
 * Qwen3-Coder configs; their required values hold for all Qwen3-MoE models. */
static const listed_key zeros[] = {
    {"add_cross_attention", EVERY}, {"attention_dropout", EVERY}, {"attn_pdrop", EVERY},
    {"chunk_size_feed_forward", EVERY}, {"dropout", EVERY}, {"embd_pdrop", EVERY},
    {"hidden_dropout", EVERY}, {"hidden_dropout_prob", EVERY}, {"is_decoder", EVERY},
    {"is_encoder_decoder", EVERY}, {"mlp_bias", EVERY}, {"norm_topk_prob", EVERY},
    {"resid_pdrop", EVERY}, {"router_jitter_noise", EVERY}, {"tie_encoder_decoder", EVERY},
    {"torchscript", EVERY}, {"qkv_bias", QWEN3}, {"shared_expert_intermediate_size", QWEN3},
};
static const listed_key ones[] = {
    {"moe_layer_freq", EVERY}, {"pretraining_tp", EVERY}, {"use_qk_norm", QWEN3},
};
/* Keys whose value may be null, which Hugging Face's transformers reads as "none" or as the
 * default. */
static const listed_key nullable[] = {
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

moert_status moert_field_float(const char *path, const char *key, const json_t *value,
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
        } else if (field->need == AGREED && !json_equal(value, other)) {
            return MOERT_FAIL(ERROR_FORMAT, "%s: %s and %s are given and differ", path, key,
                              field->keys[i]);
        }
    }
    if (value == NULL && field->need != OPTIONAL)
        return MOERT_FAIL(ERROR_FORMAT, "%s: the key %s is missing", path, field->keys[0]);
    if (value == NULL)
        return MOERT_OK;
    void *target = (char *)config + field->offset;
    switch (field->kind) {
    case FIELD_SIZE:
        return moert_field_size(path, key, value, field->smallest, target);
    case FIELD_FLOAT:
        return moert_field_float(path, key, value, field->smallest > 0, target);
    case FIELD_DOUBLE:
        return moert_field_double(path, key, value, field->smallest > 0, target);
    default:
        return moert_field_bool(path, key, value, target);
    }
}

/* ---- check that every key is known ---- */

static bool has(unsigned families, moert_family family) {
    return families >> moert_family_of(family)->keys & 1;
}

static bool lists(const listed_key *table, size_t count, const char *key, moert_family family) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(table[i].key, key) == 0 && has(table[i].families, family))
            return true;
    return false;
}
#define LISTS(table, key, family) lists(table, MOERT_COUNT(table), key, family)

static bool is_used(const char *key, moert_family family) {
    for (size_t i = 0; i < MOERT_COUNT(fields); i++)
        for (size_t k = 0; k < 4 && fields[i].keys[k] != NULL; k++)
            if (has(fields[i].families, family) && strcmp(fields[i].keys[k], key) == 0)
                return true;
    return LISTS(other_keys, key, family);
}

static bool is_harmless(const char *key) {
    for (size_t i = 0; i < MOERT_COUNT(harmless); i++)
        if (strcmp(harmless[i], key) == 0)
            return true;
    return false;
}

static bool equals(const json_t *value, int expected) {
    if (json_is_boolean(value))
        return json_is_true(value) == (expected == 1);
    return json_is_number(value) && json_number_value(value) == (double)expected;
}

static moert_status check_key(const char *path, const char *key, const json_t *value,
                              moert_family family) {
    const bool used = is_used(key, family), one = LISTS(ones, key, family),
               neutral = one || LISTS(zeros, key, family);
    if (json_is_null(value) && !LISTS(nullable, key, family) && (used || neutral))
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is null; remove the key to get the default value",
                          path, key);
    if (json_is_null(value) || used || is_harmless(key) || (neutral && equals(value, one)))
        return MOERT_OK;
    if (neutral)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "%s: %s has a value other than %d, the only one that is supported", path,
                          key, one);
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
        /* unknown sizes are written as null */
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

/* Whether moert_fields_write writes a field. model_text.c writes the rotary fields. Models without
 * dense layers omit the dense size, since Hugging Face's transformers refuses null as its value. */
static bool is_written(const config_field *field, const moert_model_config *config) {
    return has(field->families, config->family) && field->offset != FIELD(rope.theta) &&
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
        if (has(fields[i].families, config->family))
            MOERT_TRY(read_field(path, root, &fields[i], config));
    return MOERT_OK;
}
