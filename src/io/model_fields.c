/* The table of the keys of config.json, and the code that reads them. */
#include "io/model_fields.h"
#include "base/memory.h"

#include <float.h>
#include <stddef.h>

#define MIXTRAL  (1U << MOERT_FAMILY_MIXTRAL)
#define QWEN3    (1U << MOERT_FAMILY_QWEN3_MOE)
#define OLMOE    (1U << MOERT_FAMILY_OLMOE)
#define DEEPSEEK (1U << MOERT_FAMILY_DEEPSEEK_V3)
#define GPT_OSS  (1U << MOERT_FAMILY_GPT_OSS)
#define EVERY    (MIXTRAL | QWEN3 | OLMOE | DEEPSEEK | GPT_OSS)

typedef enum field_kind {
    FIELD_SIZE,  /* size_t, smallest..MOERT_FIELD_SIZE_LIMIT */
    FIELD_FLOAT, /* float, at least 0; above 0 if `smallest` is 1 */
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
                         FIELD_SIZE, FIELD(intermediate), 1, true, false, EVERY},
    {{"n_shared_experts"}, FIELD_SIZE, FIELD(shared_intermediate), 0, false, false, DEEPSEEK},
    {{"num_local_experts", "num_experts", "n_routed_experts"},
                         FIELD_SIZE, FIELD(router.experts), 1, true, true, EVERY},
    {{"num_experts_per_tok"}, FIELD_SIZE, FIELD(router.topk), 1, true, false, EVERY},
    {{"norm_topk_prob"}, FIELD_BOOL, FIELD(router.renormalise), 0, false, false,
                         QWEN3 | OLMOE | DEEPSEEK},
    {{"routed_scaling_factor"}, FIELD_FLOAT, FIELD(router.scale), 1, false, false, DEEPSEEK},
    {{"n_group"}, FIELD_SIZE, FIELD(router.groups), 1, false, false, DEEPSEEK},
    {{"topk_group"}, FIELD_SIZE, FIELD(router.kept_groups), 1, false, false, DEEPSEEK},
    {{"swiglu_limit"}, FIELD_FLOAT, FIELD(glu.limit), 1, false, false, GPT_OSS},
    {{"rms_norm_eps"}, FIELD_FLOAT, FIELD(norm_epsilon), 1, false, false, EVERY},
    {{"rope_theta"}, FIELD_FLOAT, FIELD(rope_theta), 1, false, false, EVERY},
    {{"initializer_range"}, FIELD_FLOAT, FIELD(initializer_range), 0, false, false, EVERY},
    {{"router_aux_loss_coef"}, FIELD_FLOAT, FIELD(aux_coefficient), 0, false, false, EVERY},
    {{"tie_word_embeddings"}, FIELD_BOOL, FIELD(tied_embeddings), 0, false, false, EVERY},
    {{"attention_bias"}, FIELD_BOOL, FIELD(attention_bias), 0, false, false, EVERY},
    {{"sliding_window"}, FIELD_SIZE, FIELD(sliding_window), 0, false, false, EVERY},
    {{"decoder_sparse_step"}, FIELD_SIZE, FIELD(sparse_step), 0, false, false, QWEN3},
};
/* clang-format on */

json_t *moert_field_value(const json_t *root, const char *key) {
    json_t *value = json_object_get(root, key);
    return json_is_null(value) ? NULL : value;
}

static moert_status store_size(const char *path, const char *key, const json_t *value, int smallest,
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

moert_status moert_field_float(const char *path, const char *key, const json_t *value,
                               bool positive, float *out) {
    if (!json_is_number(value))
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is not a number", path, key);
    double number = json_number_value(value);
    if (!(number >= 0.0 && number <= FLT_MAX) || (positive && (float)number == 0.0f))
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is %g, but must be %s and a finite float32", path,
                          key, number, positive ? "positive" : "at least 0");
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
        return store_size(path, key, value, field->smallest, target);
    case FIELD_FLOAT:
        return moert_field_float(path, key, value, field->smallest > 0, target);
    default:
        return moert_field_bool(path, key, value, target);
    }
}

moert_status moert_fields_read(const char *path, const json_t *root, moert_model_config *config) {
    for (size_t i = 0; i < MOERT_COUNT(fields); i++)
        if (fields[i].families >> config->family & 1)
            MOERT_TRY(read_field(path, root, &fields[i], config));
    return MOERT_OK;
}
