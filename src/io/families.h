/*
 * The model families: a table with one row for each. A row has what config.json leaves open, and
 * the names of tensors. The keys of config.json are in model_fields.c, where each row of a key has
 * the families that know it.
 *
 * To add a family: add it to moert_family, a row here, and its bit to the keys that it knows.
 */
#pragma once

#include "io/model_config.h"

/* Which layers have the sliding window, where config.json does not list them by layer_types. */
typedef enum moert_window_rule {
    MOERT_WINDOW_ALL,      /* if sliding_window is given */
    MOERT_WINDOW_SWITCHED, /* all, if use_sliding_window */
    MOERT_WINDOW_FIRST,    /* if use_sliding_window, every second of max_window_layers layers */
    MOERT_WINDOW_EVEN      /* every second layer */
} moert_window_rule;

typedef struct moert_family_row {
    const char *model_type, *architecture;
    bool output_bias; /* attention_bias means that of o, too */
    moert_window_rule windows;
    const char *mlp;             /* name of the MLP in a layer, such as "mlp" */
    const char *router;          /* names in the MLP: of the router, */
    const char *projections[3];  /* of an expert's gate, up and down, */
    const char *shared;          /* and of the shared expert */
    bool fused;                  /* the experts' tensors are fused (gpt-oss) */
    moert_model_config standard; /* constants, and defaults of absent keys as in transformers 5 */
} moert_family_row;

const moert_family_row *moert_family_of(moert_family family);
/* The family of a model_type, MOERT_FAMILIES if there is none. */
moert_family moert_family_find(const char *model_type);
