/*
 * The model families: a table with one row for each. A row names the keys of the family's
 * config.json with their defaults, the names of its tensors, and the parts of its layers that no
 * key chooses. To add a family of known parts, add a row to the table in families.c.
 */
#pragma once

#include "io/model_config.h"

/* Which layers have the sliding window if config.json has no layer_types. */
typedef enum moert_window_rule {
    MOERT_WINDOW_ALL,      /* all layers, if sliding_window is given */
    MOERT_WINDOW_SWITCHED, /* all layers, if use_sliding_window */
    MOERT_WINDOW_FIRST,    /* if use_sliding_window: the even layers below max_window_layers */
    MOERT_WINDOW_EVEN,     /* every second layer */
    MOERT_WINDOW_AFTER     /* the layers from max_window_layers on */
} moert_window_rule;

/* Names of a layer's tensors. All except `mlp` follow the name of the MLP. */
typedef struct moert_tensor_names {
    const char *mlp;            /* the MLP in a layer, such as "mlp" */
    const char *router[3];      /* by moert_router_part, such as "gate.weight" */
    const char *projections[3]; /* of an expert, by moert_expert_part, or fused */
    const char *shared;         /* the shared expert, or NULL */
    bool fused;                 /* the experts' tensors are fused (gpt-oss) */
} moert_tensor_names;

typedef struct moert_family_row {
    const char *model_type, *architecture;
    const char *alias; /* another model_type of the same models, or NULL */
    /*
     * The keys of config.json besides those of all families, as words separated by blanks. The
     * last word with a name counts.
     *
     *   NAME               a key of model_fields.c; null is refused
     *   NAME?              null means the default
     *   NAME~              null means 0
     *   NAME:DEFAULT       the default of an absent key, in JSON
     *   NAME=KEY           the family's name for a key of model_fields.c
     *   NAME|NAME=KEY      several names, whose values must agree; the first name is written
     *   NAME/NAME=KEY      several names; the first that is present counts
     *   NAME!VALUE         the only value that moert supports: a number, a bool as 0 or 1, or text
     *   NAME*              any value, without effect
     */
    const char *keys;
    moert_tensor_names names;
    moert_window_rule windows;
    bool output_bias;            /* attention_bias also adds a bias to o_proj */
    moert_model_config standard; /* settings that no key of the family chooses */
} moert_family_row;

/* Number of the families' rows. */
extern const size_t moert_families;

const moert_family_row *moert_family_of(moert_family family);
/* The family of a model_type; moert_families if there is none. */
moert_family moert_family_find(const char *model_type);
