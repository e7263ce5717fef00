/* The kinds of blocks of a model, and their shapes. */
#include "base/memory.h"
#include "model/layer_files.h"
#include "model/sublayer.h"

const char *const moert_model_block_names[MOERT_MODEL_SHAPES] = {
    "embedding, head and final norm", "attention and norms", "attention and norms", "dense GLUs",
    "routers and shared experts",     "first projections",   "second projections"};

/* The norms at the end of a layer's block. */
static const moert_norm_place last_norms[] = {MOERT_NORM_ATTENTION_RESULT, MOERT_NORM_MLP,
                                              MOERT_NORM_MLP_RESULT};

size_t moert_model_norm_at(const moert_block *block, moert_norm_place place) {
    const size_t at = block->count - MOERT_COUNT(last_norms);
    for (size_t i = 0; i < MOERT_COUNT(last_norms); i++)
        if (last_norms[i] == place)
            return at + i;
    return MOERT_ATTENTION_NORM;
}

/* elements[...] = the elements of the tensors of a layer's block with attention and norms. Returns
 * their number. */
static size_t list_attention(const moert_model_config *c, const moert_attention_shape *attention,
                             size_t layer, size_t elements[MOERT_ATTENTION_TENSORS]) {
    size_t count = 0;
    elements[count++] = moert_norm_name(c, layer, MOERT_NORM_ATTENTION) != NULL ? c->hidden : 0;
    for (size_t i = 0; i < attention->parameters; i++)
        elements[count++] =
            attention->parameter[i].rows * moert_max(attention->parameter[i].columns, 1);
    for (size_t i = 0; i < MOERT_COUNT(last_norms); i++)
        elements[count++] = moert_norm_name(c, layer, last_norms[i]) != NULL ? c->hidden : 0;
    return count;
}

/* The first layer that is or is not a MoE layer; the last one if there is none. */
static size_t first_layer(const moert_model_config *c, bool moe) {
    size_t l = 0;
    while (l + 1 < c->layers && moert_layer_is_moe(c, l) != moe)
        l++;
    return l;
}

size_t moert_model_attention_kind(const moert_model_config *c, size_t layer) {
    return moert_norms_are_alike(c) || moert_layer_is_moe(c, layer) ? MOERT_MODEL_ATTENTION
                                                                    : MOERT_MODEL_DENSE_ATTENTION;
}

size_t moert_model_attention_count(const moert_model_config *c, size_t kind) {
    size_t count = 0;
    for (size_t l = 0; l < c->layers; l++)
        count += moert_model_attention_kind(c, l) == kind;
    return count;
}

void moert_model_list_shapes(const moert_model_config *c, const moert_attention_shape *attention,
                             size_t local, moert_model_shapes *s) {
    static const size_t dense_parts[] = {2, 1};
    const moert_layer_options options = moert_layer_options_of(c);
    const size_t h = c->hidden, table = c->vocabulary * h, glu = h * c->dense_intermediate;
    *s = (moert_model_shapes){.outer = {[OUTER_EMBED] = table,
                                        [OUTER_NORM] = h,
                                        [OUTER_HEAD] = c->tied_embeddings ? 0 : table},
                              .dense = {2 * glu, glu},
                              .layer = moert_layer_shapes_of(&options, local)};
    s->of[MOERT_MODEL_OUTER] = (moert_block_shape){s->outer, OUTER_TENSORS, NULL};
    for (size_t i = 0; i < MOERT_COUNT(s->attention); i++) {
        const size_t count = list_attention(c, attention, first_layer(c, i == 0), s->attention[i]);
        s->of[MOERT_MODEL_ATTENTION + i] = (moert_block_shape){s->attention[i], count, NULL};
    }
    s->of[MOERT_MODEL_DENSE] = (moert_block_shape){s->dense, 2, dense_parts};
    for (size_t b = 0; b < MOERT_LAYER_BLOCKS; b++)
        s->of[MOERT_MODEL_MOE + b] =
            (moert_block_shape){s->layer.elements[b], s->layer.count[b], s->layer.parts[b]};
}

moert_status moert_model_create_block(moert_model *model, size_t kind, moert_block **block) {
    moert_model_shapes shapes;
    moert_model_list_shapes(&model->config, &model->attention, 0, &shapes);
    return moert_block_create(&model->mesh->everyone, moert_model_block_names[kind], true,
                              &shapes.of[kind], block);
}
