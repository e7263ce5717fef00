/*
 * The model families: a table with one row for each. A row has the settings that a family's
 * config.json does not contain, and the names of its tensors. model_fields.c lists the keys of
 * config.json, each with the families that have it.
 *
 * To add a family, add its name to moert_family, and a row to the table in families.c. The field
 * `keys` of the row names the family whose config.json has the same keys. A family with keys of its
 * own names itself in `keys`, and has a bit in the tables of keys.
 */
#pragma once

#include "io/model_config.h"

/* Which layers have the sliding window if config.json has no layer_types. */
typedef enum moert_window_rule {
    MOERT_WINDOW_ALL,      /* all layers, if sliding_window is given */
    MOERT_WINDOW_SWITCHED, /* all layers, if use_sliding_window */
    MOERT_WINDOW_FIRST,    /* if use_sliding_window: the even layers below max_window_layers */
    MOERT_WINDOW_EVEN      /* every second layer */
} moert_window_rule;

typedef struct moert_family_row {
    moert_family keys; /* config.json has the keys of this family (model_fields.c) */
    const char *model_type, *architecture;
    bool output_bias; /* attention_bias also adds a bias to o_proj */
    moert_window_rule windows;
    const char *mlp;             /* name of the MLP in a layer, such as "mlp" */
    const char *router;          /* name of the router in the MLP */
    const char *projections[3];  /* names of an expert's gate, up and down projections */
    const char *shared;          /* name of the shared expert in the MLP, or NULL */
    bool fused;                  /* the experts' tensors are fused (gpt-oss) */
    moert_model_config standard; /* constants, and the defaults of absent keys in Hugging Face's
                                    transformers 5 */
} moert_family_row;

const moert_family_row *moert_family_of(moert_family family);
/* The family of a model_type, MOERT_FAMILIES if there is none. */
moert_family moert_family_find(const char *model_type);
