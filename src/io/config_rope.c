/* Reads the rotary scheme of config.json: rope_parameters (transformers 5), or rope_scaling with
 * rope_theta beside it (older versions). */
#include <string.h>

#include "base/memory.h"
#include "io/internal.h"
#include "io/model_fields.h"

static const struct {
    const char *name;
    moert_rope_type type;
} types[] = {{"default", MOERT_ROPE_DEFAULT},
             {"linear", MOERT_ROPE_LINEAR},
             {"yarn", MOERT_ROPE_YARN},
             {"llama3", MOERT_ROPE_LLAMA3}};

/* The numbers of a scheme, with the types that need them. */
enum { THETA = offsetof(moert_rope_scheme, theta) };
#define NEEDED(type) (1U << MOERT_ROPE_##type)
static const struct {
    const char *key;
    size_t offset;
    unsigned needed;
} doubles[] = {
    {"rope_theta", THETA, 0},
    {"factor", offsetof(moert_rope_scheme, factor), NEEDED(LINEAR) | NEEDED(LLAMA3)},
    {"attention_factor", offsetof(moert_rope_scheme, attention_factor), 0},
    {"mscale", offsetof(moert_rope_scheme, mscale), 0},
    {"mscale_all_dim", offsetof(moert_rope_scheme, mscale_all_dim), 0},
    {"beta_fast", offsetof(moert_rope_scheme, beta_fast), 0},
    {"beta_slow", offsetof(moert_rope_scheme, beta_slow), 0},
    {"low_freq_factor", offsetof(moert_rope_scheme, low_factor), NEEDED(LLAMA3)},
    {"high_freq_factor", offsetof(moert_rope_scheme, high_factor), NEEDED(LLAMA3)},
};

static const char *const other_keys[] = {"rope_type", "type", "original_max_position_embeddings",
                                         "truncate", "partial_rotary_factor"};

static moert_status check_keys(const char *path, const char *name, json_t *rope) {
    const char *key;
    json_t *value;
    json_object_foreach(rope, key, value) {
        bool known = json_is_null(value);
        for (size_t i = 0; i < MOERT_COUNT(doubles); i++)
            known |= strcmp(key, doubles[i].key) == 0;
        for (size_t i = 0; i < MOERT_COUNT(other_keys); i++)
            known |= strcmp(key, other_keys[i]) == 0;
        if (!known)
            return MOERT_FAIL(ERROR_UNSUPPORTED, "%s: moert does not know the key %.64s of %s",
                              path, key, name);
    }
    return MOERT_OK;
}

static moert_status read_type(const char *path, const char *name, const json_t *rope,
                              moert_rope_type *type) {
    const json_t *value = moert_field_value(rope, "rope_type");
    if (value == NULL)
        value = moert_field_value(rope, "type");
    *type = MOERT_ROPE_DEFAULT;
    if (value == NULL)
        return MOERT_OK;
    if (!json_is_string(value))
        return MOERT_FAIL(ERROR_FORMAT, "%s: the rope_type in %s is not a string", path, name);
    for (size_t i = 0; i < MOERT_COUNT(types); i++)
        if (strcmp(types[i].name, json_string_value(value)) == 0) {
            *type = types[i].type;
            return MOERT_OK;
        }
    return MOERT_FAIL(ERROR_UNSUPPORTED,
                      "%s: rope_type of %s is '%.64s'; supported are default, linear, yarn and "
                      "llama3",
                      path, name, json_string_value(value));
}

static moert_status read_scheme(const char *path, const char *name, json_t *rope,
                                moert_model_config *config) {
    moert_rope_scheme scheme = {
        .interleaved = config->rope.interleaved, .theta = config->rope.theta, .truncate = true};
    if (!json_is_object(rope))
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is not an object", path, name);
    MOERT_TRY(check_keys(path, name, rope));
    MOERT_TRY(read_type(path, name, rope, &scheme.type));
    for (size_t i = 0; i < MOERT_COUNT(doubles); i++) {
        const json_t *value = moert_field_value(rope, doubles[i].key);
        void *target = (char *)&scheme + doubles[i].offset;
        if (value != NULL)
            MOERT_TRY(moert_field_double(path, doubles[i].key, value, doubles[i].offset == THETA,
                                         target));
        else if (doubles[i].needed >> scheme.type & 1)
            return MOERT_FAIL(ERROR_FORMAT, "%s: the key %s of %s is missing", path, doubles[i].key,
                              name);
    }
    const json_t *original = moert_field_value(rope, "original_max_position_embeddings"),
                 *truncate = moert_field_value(rope, "truncate"),
                 *partial = moert_field_value(rope, "partial_rotary_factor");
    scheme.original = config->max_positions;
    if (original != NULL)
        MOERT_TRY(moert_field_size(path, "original_max_position_embeddings", original, 1,
                                   &scheme.original));
    if (truncate != NULL)
        MOERT_TRY(moert_field_bool(path, "truncate", truncate, &scheme.truncate));
    if (partial != NULL) {
        double part;
        MOERT_TRY(moert_field_double(path, "partial_rotary_factor", partial, true, &part));
        config->partial_rotary = (float)part;
    }
    if (scheme.type == MOERT_ROPE_YARN && scheme.factor == 0.0)
        scheme.factor = (double)config->max_positions / (double)scheme.original;
    config->rope = scheme;
    return MOERT_OK;
}

moert_status moert_config_read_rope(const char *path, const json_t *root,
                                    moert_model_config *config) {
    static const char *const names[] = {"rope_parameters", "rope_scaling"};
    for (size_t i = 0; i < MOERT_COUNT(names); i++) {
        json_t *rope = moert_field_value(root, names[i]);
        if (rope != NULL)
            MOERT_TRY(read_scheme(path, names[i], rope, config));
    }
    if (config->partial_rotary > 1.0f)
        return MOERT_FAIL(ERROR_FORMAT, "%s: partial_rotary_factor is %g, above 1", path,
                          (double)config->partial_rotary);
    return MOERT_OK;
}
