/* The sizes of a rank's buffers, shared by the files of the memory estimate. */
#pragma once

#include "estimate/memory.h"
#include "model/sizes.h"

typedef struct moert_memory_shape {
    const moert_memory_setting *setting;
    moert_layer_options options; /* this and the next two fields follow from the config */
    moert_layer_choices choices;
    moert_attention_shape attention;
    moert_model_sizes model;
    moert_layer_sizes layer; /* layer.rows: rows of the MoE layer with the most rows */
    moert_row_peak peak;     /* of that layer */
    size_t capacity_rows;    /* the largest number of rows M that any routing can give a rank */
    size_t chain;            /* the most members of an expert's chain (plan/expert_map.h) */
    size_t moe_layers, dense_layers;
} moert_memory_shape;

/* Of `layers` layers of one kind, the number whose activations are kept (moert_recompute). */
static inline size_t moert_memory_kept_layers(const moert_memory_shape *s, size_t layers) {
    return s->setting->config->memory.recompute == MOERT_RECOMPUTE_LAYER ? layers > 0 : layers;
}

/* The most rows of the pass of a MoE layer. */
static inline moert_row_peak moert_memory_pass_peak(const moert_memory_shape *s, size_t pass) {
    return s->setting->peaks != NULL ? s->setting->peaks[pass] : s->peak;
}

/* Adds `bytes` to a kind of memory (a field of MOERT_MEMORY_TABLE), and to the part `name` of that
 * kind. */
#define MOERT_MEMORY_ADD(memory, kind, name, bytes)                                                \
    moert_memory_add((memory), #kind, &(memory)->kind, (name), (bytes))
void moert_memory_add(moert_memory *memory, const char *kind, size_t *sum, const char *name,
                      size_t bytes);

/* Adds the windows of the exchange, the windows for sums between devices, and the rows packed into
 * messages. */
void moert_memory_add_exchange(const moert_memory_shape *shape, moert_memory *memory);
