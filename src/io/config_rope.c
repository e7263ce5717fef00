/* Reads the rotary scheme of config.json: rope_parameters (Hugging Face's transformers 5), or
 * rope_scaling and rope_theta (older versions). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/memory.h"
#include "io/families.h"
#include "io/internal.h"
#include "io/model_fields.h"

/* Names of the rotary types, in the order of moert_rope_type. */
#define TYPES "default|linear|yarn|llama3"

/* The numeric keys of a rotary scheme, and the rotary types that require them. */
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
        bool known = false;
        for (size_t i = 0; i < MOERT_COUNT(doubles); i++)
            known |= strcmp(key, doubles[i].key) == 0;
        for (size_t i = 0; i < MOERT_COUNT(other_keys); i++)
            known |= strcmp(key, other_keys[i]) == 0;
        if (known && json_is_null(value))
            return MOERT_FAIL(ERROR_FORMAT, "%s: %s.%s is null", path, name, key);
        if (!known && !json_is_null(value))
            return MOERT_FAIL(ERROR_UNSUPPORTED, "%s: moert does not know the key %.64s of %s",
                              path, key, name);
    }
    return MOERT_OK;
}

void moert_config_set_rope_width(float partial, const moert_model_config *config,
                                 moert_rope_scheme *rope) {
    rope->width = config->latent.kv_rank > 0 ? config->latent.rope : config->head_size;
    if (partial > 0.0f)
        rope->width = (size_t)((double)config->head_size * (double)partial);
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
    const int index = moert_choice_index(TYPES, json_string_value(value));
    if (index < 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "%s: rope_type of %s is '%.64s'; supported are default, linear, yarn and "
                          "llama3",
                          path, name, json_string_value(value));
    *type = (moert_rope_type)index;
    return MOERT_OK;
}

/* Returns the value of a key of the rotary scheme, or NULL. `full` = the key's name for
 * messages. */
static const json_t *find(const json_t *rope, const char *name, const char *key, char full[96]) {
    snprintf(full, 96, "%s.%s", name, key);
    return moert_field_value(rope, key);
}

static moert_status read_scheme(const char *path, const char *name, json_t *rope,
                                moert_model_config *config) {
    moert_rope_scheme scheme = {
        .interleaved = config->rope.interleaved, .theta = config->rope.theta, .truncate = true};
    if (!json_is_object(rope))
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is not an object", path, name);
    MOERT_TRY(check_keys(path, name, rope));
    MOERT_TRY(read_type(path, name, rope, &scheme.type));
    char key[96];
    for (size_t i = 0; i < MOERT_COUNT(doubles); i++) {
        const json_t *value = find(rope, name, doubles[i].key, key);
        void *target = (char *)&scheme + doubles[i].offset;
        if (value != NULL)
            MOERT_TRY(moert_field_double(path, key, value, doubles[i].offset == THETA, target));
        else if (doubles[i].needed >> scheme.type & 1)
            return MOERT_FAIL(ERROR_FORMAT, "%s: the key %s of %s is missing", path, doubles[i].key,
                              name);
    }
    const json_t *value = find(rope, name, "original_max_position_embeddings", key);
    scheme.original = config->max_positions;
    if (value != NULL)
        MOERT_TRY(moert_field_size(path, key, value, 1, &scheme.original));
    if ((value = find(rope, name, "truncate", key)) != NULL)
        MOERT_TRY(moert_field_bool(path, key, value, &scheme.truncate));
    if ((value = find(rope, name, "partial_rotary_factor", key)) != NULL)
        MOERT_TRY(moert_field_float(path, key, value, true, &config->partial_rotary));
    if (scheme.type == MOERT_ROPE_YARN && scheme.factor == 0.0)
        scheme.factor = (double)config->max_positions / (double)scheme.original;
    config->rope = scheme;
    return MOERT_OK;
}

/* Reads one scheme or, in families with schemes by type of layer, an object with both. */
static moert_status read_schemes(const char *path, const char *name, json_t *rope,
                                 moert_model_config *config) {
    json_t *full = json_object_get(rope, "full_attention"),
           *window = json_object_get(rope, "sliding_attention");
    if (!moert_family_of(config->family)->rope_by_type || full == NULL || window == NULL ||
        json_object_size(rope) != 2)
        return read_scheme(path, name, rope, config);
    moert_model_config windowed = *config;
    windowed.rope = config->window_rope;
    MOERT_TRY(read_scheme(path, name, window, &windowed));
    MOERT_TRY(read_scheme(path, name, full, config));
    config->window_rope = windowed.rope;
    moert_config_set_rope_width(windowed.partial_rotary, config, &config->window_rope);
    return MOERT_OK;
}

/* Whether two configs have the same rotary scheme. */
static bool same_scheme(const moert_model_config *a, const moert_model_config *b) {
    bool same = a->rope.type == b->rope.type && a->rope.original == b->rope.original &&
                a->rope.truncate == b->rope.truncate && a->partial_rotary == b->partial_rotary;
    for (size_t i = 0; i < MOERT_COUNT(doubles); i++)
        same &= memcmp((const char *)&a->rope + doubles[i].offset,
                       (const char *)&b->rope + doubles[i].offset, sizeof(double)) == 0;
    return same;
}

static moert_status contradiction(const char *path, const json_t *root) {
    char *parameters = json_dumps(json_object_get(root, "rope_parameters"), JSON_COMPACT),
         *scaling = json_dumps(json_object_get(root, "rope_scaling"), JSON_COMPACT);
    const moert_status status =
        parameters == NULL || scaling == NULL
            ? MOERT_FAIL(ERROR_MEMORY, "%s: no memory to print its rotary schemes", path)
            : MOERT_FAIL(ERROR_FORMAT,
                         "%s: rope_parameters is %.200s, but rope_scaling is %.200s; remove one",
                         path, parameters, scaling);
    MOERT_FREE(scaling, parameters);
    return status;
}

/* Reads layer_rope_theta: 0 for layers without rotary positions; the others with a window have one
 * theta, and those without a window one. Call it after windows are read. */
moert_status moert_config_read_thetas(const char *path, const json_t *root,
                                      moert_model_config *config) {
    const json_t *list = moert_field_value(root, "layer_rope_theta"), *value;
    double thetas[2] = {0.0, 0.0};
    size_t l;
    if (list == NULL)
        return MOERT_OK;
    MOERT_TRY(moert_field_layers(path, "layer_rope_theta", list, config->layers));
    json_array_foreach(list, l, value) {
        double theta, *of_type = &thetas[moert_layer_set_has(&config->windowed, l)];
        MOERT_TRY(moert_field_double(path, "layer_rope_theta", value, false, &theta));
        if (theta == 0.0 && l < MOERT_LAYERS_MOST)
            moert_layer_set_add(&config->unrotated, l);
        if (theta > 0.0 && *of_type > 0.0 && theta != *of_type)
            return MOERT_FAIL(ERROR_UNSUPPORTED,
                              "%s: layer_rope_theta of layer %zu is %g, but that of another layer "
                              "of its layer_types %g; supported are equal values and 0",
                              path, l, theta, *of_type);
        *of_type = theta > 0.0 ? theta : *of_type;
    }
    config->window_rope = config->rope;
    config->window_rope.theta = thetas[1];
    config->rope.theta = thetas[0] > 0.0 ? thetas[0] : config->rope.theta;
    return MOERT_OK;
}

moert_status moert_config_read_rope(const char *path, const json_t *root,
                                    moert_model_config *config) {
    static const char *const names[] = {"rope_parameters", "rope_scaling"};
    const json_t *theta = moert_field_value(root, "rope_theta");
    moert_model_config found[MOERT_COUNT(names)] = {{.family = 0}};
    size_t count = 0;
    for (size_t i = 0; i < MOERT_COUNT(names); i++) {
        json_t *rope = moert_field_value(root, names[i]);
        if (rope == NULL)
            continue;
        found[count] = *config;
        if (theta == NULL && count > 0)
            found[count].rope.theta = found[0].rope.theta;
        MOERT_TRY(read_schemes(path, names[i], rope, &found[count]));
        if (theta != NULL && found[count].rope.theta != config->rope.theta)
            return MOERT_FAIL(ERROR_FORMAT, "%s: rope_theta is %g, but %g in %s", path,
                              config->rope.theta, found[count].rope.theta, names[i]);
        count++;
    }
    if (count == 2 && !same_scheme(&found[0], &found[1]))
        return contradiction(path, root);
    if (count > 0)
        *config = found[0];
    if (config->partial_rotary > 1.0f)
        return MOERT_FAIL(ERROR_FORMAT, "%s: partial_rotary_factor is %g, above 1", path,
                          (double)config->partial_rotary);
    return MOERT_OK;
}
