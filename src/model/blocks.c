/* The kinds of blocks of a model, and their shapes. */
#include "base/memory.h"
#include "model/layer_files.h"
#include "model/sublayer.h"

const char *const moert_model_block_names[MOERT_MODEL_SHAPES] = {
    "embedding, head and final norm", "attention and norms", "dense GLUs",
    "routers and shared experts",     "first projections",   "second projections"};

void moert_model_list_shapes(const moert_model_config *c, const moert_attention_shape *attention,
                             size_t local, moert_model_shapes *s) {
    static const size_t dense_parts[] = {2, 1};
    const moert_layer_options options = moert_layer_options_of(c);
    const size_t h = c->hidden, table = c->vocabulary * h, glu = h * c->dense_intermediate,
                 last = MOERT_ATTENTION_FIRST + attention->parameters;
    *s = (moert_model_shapes){.outer = {[OUTER_EMBED] = table,
                                        [OUTER_NORM] = h,
                                        [OUTER_HEAD] = c->tied_embeddings ? 0 : table},
                              .dense = {2 * glu, glu},
                              .layer = moert_layer_shapes_of(&options, local)};
    s->attention[MOERT_ATTENTION_NORM] = s->attention[last] = h;
    for (size_t i = 0; i < attention->parameters; i++)
        s->attention[MOERT_ATTENTION_FIRST + i] =
            attention->parameter[i].rows * moert_max(attention->parameter[i].columns, 1);
    s->of[MOERT_MODEL_OUTER] = (moert_block_shape){s->outer, OUTER_TENSORS, NULL};
    s->of[MOERT_MODEL_ATTENTION] = (moert_block_shape){s->attention, last + 1, NULL};
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
