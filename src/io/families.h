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
    MOERT_WINDOW_FOURTH,   /* all but every fourth layer, from the first on */
    MOERT_WINDOW_NONE,     /* no layer */
    MOERT_WINDOW_AFTER,    /* the layers from max_window_layers on */
    MOERT_WINDOW_PATTERN /* by sliding_window_pattern: all but every n-th layer, or a text of L and
                              G */
} moert_window_rule;

/* Names of a layer's tensors, without "model.layers.N.". */
typedef struct moert_tensor_names {
    moert_expert_files files;
    const char *router[3];       /* by moert_router_part, such as "mlp.gate.weight" */
    const char *experts;         /* such as "mlp.experts" */
    const char *parts[3];        /* of an expert in separate files, by moert_expert_part */
    const char *joined[2];       /* tensors of all experts: gate and up; down */
    const char *dense;           /* the MLP of a dense layer; NULL: there is none */
    const char *shared;          /* the shared expert; NULL: there is none */
    const char *shared_parts[3]; /* of dense MLPs and shared experts; if gate and up have one name,
                                    the tensor has the rows of both */
    const char *shared_gate;
} moert_tensor_names;

typedef struct moert_family_row {
    const char *model_type, *architecture;
    const char *alias; /* another model_type of the same models, or NULL */
    /*
     * The keys of config.json besides those of all families, as words separated by blanks. Of
     * several words for one key the last counts.
     *
     *   NAME               a key of model_fields.c; null is refused
     *   NAME?              null means the default
     *   NAME~              null means 0
     *   NAME+              a number, or a list that has this number for each layer
     *   NAME:DEFAULT       the default of an absent key, in JSON
     *   NAME=KEY           the family's name for a key of model_fields.c
     *   NAME|NAME=KEY      several names, whose values must agree; the first name is written
     *   NAME/NAME=KEY      several names; the first that is present counts
     *   NAME!VALUE         the only value that moert supports: a number, a bool as 0 or 1, or text
     *   NAME*              any value, without effect
     */
    const char *keys;
    moert_tensor_names names;
    const moert_tensor_names *joined; /* names in files with joined experts; NULL: `names` */
    const char *quant_method;         /* of quantized files; NULL: "fp8" */
    /* names of a layer's norms, by moert_norm_place; all NULL: input_layernorm and
     * post_attention_layernorm before the sublayers */
    const char *norms[MOERT_NORMS];
    const char *head_norms[2]; /* norms of q and k; NULL: self_attn.q_norm and k_norm */
    bool sparse_result_norm;   /* only MoE layers have the norm of the MLP's result */
    moert_window_rule windows;
    bool rope_by_type;           /* rope_parameters has a scheme for each type of layer */
    bool full_unrotated;         /* beside layers with windows, others do not rotate */
    bool output_bias;            /* attention_bias also adds a bias to o_proj */
    moert_model_config standard; /* settings that no key of the family chooses */
} moert_family_row;

/* Number of the families' rows. */
extern const size_t moert_families;

const moert_family_row *moert_family_of(moert_family family);
/* The family of a model_type; moert_families if there is none. */
moert_family moert_family_find(const char *model_type);
