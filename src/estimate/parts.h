/* The shape of a rank's memory, shared by the files of the memory estimate. */
#pragma once

#include "estimate/memory.h"
#include "model/internal.h"
#include "layer/choices.h"
#include "model/layer_files.h"

enum { MOERT_WINDOW_ROW_FLOATS = 16 }; /* ROW_FLOATS of exchange/storage.c */

/* The sizes of which the sums consist. */
typedef struct moert_memory_shape {
    const moert_model_config *config;
    moert_layer_options options;                               /* implied by the config */
    size_t tokens, sequences, first_sequence, total_sequences; /* `tokens` is T of this rank */
    size_t length, experts;                                    /* S; L of this rank */
    size_t chain;                /* the most members of an expert's chain (plan/expert_map.h) */
    moert_row_peak peak;         /* M, in the layer where it is largest */
    const moert_row_peak *peaks; /* [MoE layers] in each; NULL: `peak` in all */
    size_t capacity_rows;        /* the bound of M */
    moert_aux_form aux_form;
    moert_attention_shape attention;
    size_t moe_layers, dense_layers;
    size_t dense;                            /* I of a dense layer, 0 if there is none */
    size_t partial_floats;                   /* moert_block_partial_bytes */
    moert_layer_choices choices;             /* of a MoE layer */
    moert_dtype shared_v_type, dense_v_type; /* moert_operand_between */
} moert_memory_shape;

/* How many layers of a kind keep their activations (moert_recompute). */
static inline size_t moert_memory_kept_layers(const moert_memory_shape *s, size_t layers) {
    return s->config->memory.recompute == MOERT_RECOMPUTE_LAYER ? moert_min(layers, 1) : layers;
}

/* The most rows of the pass of a MoE layer. */
static inline moert_row_peak moert_memory_pass_peak(const moert_memory_shape *s, size_t pass) {
    return s->peaks != NULL ? s->peaks[pass] : s->peak;
}

/* Floats of the exchange (exchange.c): rows of windows that are used, that are reserved, and which
 * of the two takes memory; rows packed into messages. */
typedef struct moert_memory_exchange {
    size_t used, reserved, taken, staging;
} moert_memory_exchange;
moert_memory_exchange moert_memory_exchange_of(const moert_memory_setting *setting,
                                               const moert_memory_shape *s);
/* Bytes of rounded and prepacked copies of weights: of so many layers, and of all with the head. */
size_t moert_memory_layer_copies(const moert_memory_setting *setting, const moert_memory_shape *s,
                                 size_t moe_layers, size_t dense_layers);
size_t moert_memory_copies(const moert_memory_setting *setting, const moert_memory_shape *s);
/* Floats in the mesh's scratch buffers of layer/rounding.c, layer/operand.c and
 * layer/wire.c. */
size_t moert_memory_rounding(const moert_memory_setting *setting, const moert_memory_shape *s);
