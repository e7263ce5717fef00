/* Reads from config.json which layers have a sliding window and which have a dense GLU. */
#include <string.h>

#include "io/families.h"
#include "io/internal.h"
#include "io/model_fields.h"

/* The number of layers of the config, at most as many as a moert_layer_set holds. */
static size_t layer_count(const moert_model_config *config) {
    return config->layers < MOERT_LAYERS_MOST ? config->layers : MOERT_LAYERS_MOST;
}

static moert_status read_types(const char *path, const json_t *list, moert_model_config *config) {
    MOERT_TRY(moert_field_layers(path, "layer_types", list, config->layers));
    for (size_t l = 0; l < layer_count(config); l++) {
        const char *type = json_string_value(json_array_get(list, l));
        if (type != NULL && strcmp(type, "sliding_attention") == 0)
            moert_layer_set_add(&config->windowed, l);
        else if (type == NULL ||
                 (strcmp(type, "full_attention") != 0 &&
                  (config->indexer.topk == 0 || strcmp(type, "indexed_attention") != 0)))
            return MOERT_FAIL(ERROR_UNSUPPORTED,
                              "%s: layer_types of layer %zu is '%.64s'; supported are "
                              "sliding_attention and full_attention",
                              path, l, type != NULL ? type : "(not a string)");
    }
    return MOERT_OK;
}

/* Checks layer_types of a family whose layers are all alike: all have a window if sliding_window is
 * given, otherwise none. */
static moert_status check_types(const char *path, const moert_model_config *config) {
    for (size_t l = 0; l < layer_count(config); l++) {
        const bool windowed = moert_layer_set_has(&config->windowed, l);
        if (windowed != (config->sliding_window > 0))
            return MOERT_FAIL(ERROR_UNSUPPORTED,
                              "%s: layer_types of layer %zu is %s, but sliding_window is %zu, and "
                              "a model of this family has a window in all layers or in none",
                              path, l, windowed ? "sliding_attention" : "full_attention",
                              config->sliding_window);
    }
    return MOERT_OK;
}

/* sliding_window_pattern: layers with a window (L) and without (G), as a text that repeats; or a
 * number n, which stands for n - 1 layers with a window and one without. */
typedef struct window_pattern {
    size_t every;
    const char *text;
} window_pattern;

static moert_status read_pattern(const char *path, const json_t *root, window_pattern *pattern) {
    const json_t *value = moert_field_value(root, "sliding_window_pattern");
    *pattern = (window_pattern){4, json_string_value(value)};
    if (value == NULL)
        return MOERT_OK;
    if (pattern->text == NULL)
        return moert_field_size(path, "sliding_window_pattern", value, 1, &pattern->every);
    if (pattern->text[0] == '\0' || pattern->text[strspn(pattern->text, "LG")] != '\0')
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "%s: sliding_window_pattern is '%.64s'; expected a number, or L and G "
                          "for layers with and without a window",
                          path, pattern->text);
    return MOERT_OK;
}

/* Whether a layer has a window by the family's rule. */
static bool has_window(const moert_model_config *config, const window_pattern *pattern, size_t l) {
    switch (moert_family_of(config->family)->windows) {
    case MOERT_WINDOW_FOURTH:
        return l % 4 != 0;
    case MOERT_WINDOW_NONE:
        return false;
    case MOERT_WINDOW_EVEN:
        return l % 2 == 0;
    case MOERT_WINDOW_FIRST:
        return l % 2 == 0 && l < config->window_layers;
    case MOERT_WINDOW_AFTER:
        return l >= config->window_layers;
    case MOERT_WINDOW_PATTERN:
        return pattern->text != NULL ? pattern->text[l % strlen(pattern->text)] == 'L'
                                     : (l + 1) % pattern->every != 0;
    default:
        return true;
    }
}

/* Checks that each layer has a sparse indexer of its own. */
static moert_status check_indexers(const char *path, const json_t *root) {
    const json_t *list = moert_field_value(root, "indexer_types"), *type;
    size_t l;
    json_array_foreach(list, l, type) {
        if (!json_is_string(type) || strcmp(json_string_value(type), "full") != 0)
            return MOERT_FAIL(ERROR_UNSUPPORTED,
                              "%s: indexer_types of layer %zu is not full, the only one that is "
                              "supported",
                              path, l);
    }
    return MOERT_OK;
}

static moert_status read_windows(const char *path, const json_t *root, moert_model_config *config) {
    const moert_window_rule rule = moert_family_of(config->family)->windows;
    const json_t *use = moert_field_value(root, "use_sliding_window"),
                 *types = moert_field_value(root, "layer_types");
    const bool switched = rule == MOERT_WINDOW_SWITCHED || rule == MOERT_WINDOW_FIRST;
    window_pattern pattern = {1, NULL};
    bool used = !switched;
    if (use != NULL)
        MOERT_TRY(moert_field_bool(path, "use_sliding_window", use, &used));
    if (!used)
        config->sliding_window = 0;
    if (types != NULL)
        MOERT_TRY(read_types(path, types, config));
    if (types != NULL && (rule == MOERT_WINDOW_ALL || rule == MOERT_WINDOW_SWITCHED))
        return check_types(path, config);
    if (rule == MOERT_WINDOW_PATTERN)
        MOERT_TRY(read_pattern(path, root, &pattern));
    for (size_t l = 0; types == NULL && l < layer_count(config); l++)
        if (has_window(config, &pattern, l))
            moert_layer_set_add(&config->windowed, l);
    if (config->sliding_window == 0)
        config->windowed = (moert_layer_set){{0}};
    for (size_t l = 0; moert_family_of(config->family)->full_unrotated &&
                       config->sliding_window > 0 && l < layer_count(config);
         l++)
        if (!moert_layer_set_has(&config->windowed, l))
            moert_layer_set_add(&config->unrotated, l);
    return MOERT_OK;
}

/* Reads mlp_layer_types, which decides about all layers. */
static moert_status read_mlp_types(const char *path, const json_t *list,
                                   moert_model_config *config) {
    MOERT_TRY(moert_field_layers(path, "mlp_layer_types", list, config->layers));
    for (size_t l = 0; l < layer_count(config); l++) {
        const char *type = json_string_value(json_array_get(list, l));
        if (type != NULL && strcmp(type, "dense") == 0)
            moert_layer_set_add(&config->dense_layers, l);
        else if (type == NULL || strcmp(type, "sparse") != 0)
            return MOERT_FAIL(ERROR_UNSUPPORTED,
                              "%s: mlp_layer_types of layer %zu is '%.64s'; supported are dense "
                              "and sparse",
                              path, l, type != NULL ? type : "(not a string)");
    }
    return MOERT_OK;
}

static moert_status read_dense(const char *path, const json_t *root, moert_model_config *config) {
    const json_t *list = moert_field_value(root, "mlp_only_layers"),
                 *types = moert_field_value(root, "mlp_layer_types");
    if (types != NULL)
        return read_mlp_types(path, types, config);
    if (list != NULL && !json_is_array(list))
        return MOERT_FAIL(ERROR_FORMAT, "%s: mlp_only_layers is not a list", path);
    for (size_t i = 0; i < json_array_size(list); i++) {
        size_t layer;
        MOERT_TRY(moert_field_size(path, "mlp_only_layers", json_array_get(list, i), 0, &layer));
        if (layer >= config->layers)
            return MOERT_FAIL(
                ERROR_FORMAT,
                "%s: mlp_only_layers has layer %zu; expected layers below %zu (num_hidden_layers)",
                path, layer, config->layers);
        if (layer < MOERT_LAYERS_MOST)
            moert_layer_set_add(&config->dense_layers, layer);
    }
    for (size_t l = 0; l < layer_count(config); l++)
        if (l < config->first_dense ||
            (config->sparse_step > 1 && (l + 1) % config->sparse_step != 0))
            moert_layer_set_add(&config->dense_layers, l);
    return MOERT_OK;
}

moert_status moert_config_read_layers(const char *path, const json_t *root,
                                      moert_model_config *config) {
    MOERT_TRY(read_windows(path, root, config));
    MOERT_TRY(check_indexers(path, root));
    return read_dense(path, root, config);
}
