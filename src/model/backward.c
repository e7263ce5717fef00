/* The model's backward pass, from the gradient of the last norm's result to the gradients of all
 * parameters. */
#include "base/memory.h"
#include "base/phase.h"
#include "model/sublayer.h"

static moert_status differentiate_embedding(moert_model *model) {
    const moert_model_config *c = &model->config;
    moert_phase_set(MOERT_PHASE_EMBEDDING_BACKWARD);
    if (c->tied_embeddings)
        return moert_head_collect_tied(model);
    return moert_embedding_gradient(&(moert_embedding_sum){
        .length = model->length,
        .hidden = c->hidden,
        .rows = c->vocabulary,
        .token = model->tokens,
        .link = model->links,
        .dx = model->d,
        .at = moert_block_nodes(model->outer, OUTER_EMBED, &model->batch, 0)});
}

/* ---- sums over ranks, whose messages travel while the next layer is computed ---- */

static moert_status progress_sums(void *context) {
    moert_model_layer *layer = context;
    MOERT_TRY(moert_model_mlp_of(layer)->reduce_progress(layer));
    return moert_block_reduce_progress(layer->attention);
}

/* Where hosts sum, waits for the device and meanwhile advances the sums of layer `under_way`. */
static moert_status wait_for_device(moert_model *model, moert_model_layer *under_way) {
    if (moert_comm_size(model->mesh->world) == 1 || model->mesh->everyone.peers != NULL)
        return MOERT_OK;
    return moert_device_wait(model->device, progress_sums, under_way);
}

static moert_status end_sums(moert_model_layer *layer) {
    MOERT_TRY(moert_model_mlp_of(layer)->reduce_wait(layer));
    return moert_block_reduce_wait(layer->attention);
}

static void set_repeating(moert_model_layer *layer, bool repeats) {
    moert_block *block;
    moert_block_repeat(layer->attention, repeats);
    for (size_t i = 0; (block = moert_model_mlp_of(layer)->block(layer, i)) != NULL; i++)
        moert_block_repeat(block, repeats);
}

/* Computes a layer's activations again. The gradient's bf16 values stay in model->bf16. */
static moert_status run_again(moert_model *model, size_t index) {
    moert_buffer *const gradient = model->bf16;
    if (gradient != NULL)
        MOERT_TRY(
            moert_buffer_reserve(model->device, moert_buffer_bytes(gradient), &model->spare_bf16));
    model->bf16 = model->spare_bf16;
    set_repeating(&model->layer[index], true);
    const moert_status status = moert_model_run_layer(model, index);
    set_repeating(&model->layer[index], false);
    model->bf16 = gradient;
    return status;
}

/* Backward of layer `index`. Starts its sums when its gradients are complete, and waits for the
 * sums of the layer above. */
static moert_status differentiate_layer(moert_model *model, size_t index, bool last) {
    moert_model_layer *layer = &model->layer[index], *above = layer + 1;
    const bool is_top = index + 1 == model->config.layers;
    if (moert_model_recomputes(model) && !is_top)
        MOERT_TRY(run_again(model, index));
    MOERT_TRY(moert_block_begin(layer->attention, &model->batch, model->accumulate));
    MOERT_TRY(moert_model_differentiate_mlp(model, layer, model->accumulate));
    MOERT_TRY(wait_for_device(model, is_top ? layer : above));
    if (!is_top)
        MOERT_TRY(end_sums(above));
    MOERT_TRY(moert_model_mlp_of(layer)->reduce_start(model, layer, last));
    MOERT_TRY(moert_model_differentiate_attention(model, layer, moert_model_input(model, index)));
    MOERT_TRY(wait_for_device(model, layer));
    return moert_block_reduce_start(layer->attention, model->mesh->spans);
}

moert_status moert_model_backward(moert_model *model, bool last) {
    const moert_model_config *c = &model->config;
    const size_t rows = model->batch.tokens * c->hidden;
    MOERT_TRY(moert_model_reserve(model, rows, &model->d));
    MOERT_TRY(moert_model_reserve_rows(model, model->attention.scratch, model->scratch));
    MOERT_TRY(moert_mesh_gather_spans(model->mesh, &model->batch));
    moert_phase_set(MOERT_PHASE_LOGITS_BACKWARD);
    MOERT_TRY(moert_model_differentiate_rows(model, model->outer, OUTER_NORM,
                                             model->layer[c->layers - 1].out, model->final_rstd,
                                             false));
    for (size_t i = c->layers; i-- > 0;)
        MOERT_TRY(differentiate_layer(model, i, last));
    MOERT_TRY(differentiate_embedding(model));
    MOERT_TRY(wait_for_device(model, &model->layer[0]));
    MOERT_TRY(end_sums(&model->layer[0]));
    MOERT_TRY(moert_block_reduce_start(model->outer, model->mesh->spans));
    MOERT_TRY(moert_block_reduce_wait(model->outer));
    return moert_mesh_settle(model->mesh);
}
