/* The MLP of a MoE layer: a moert_layer. */
#include "base/rng.h"
#include "model/layer_files.h"
#include "model/sublayer.h"

static moert_status create(moert_model *model, moert_model_layer *layer) {
    const moert_layer_options options = moert_layer_options_of(&model->config);
    MOERT_TRY(moert_layer_create(model->mesh, &options, &layer->moe));
    if (model->config.balanced_routing)
        moert_layer_balance_routing(layer->moe);
    if (moert_model_recomputes(model) && layer != model->moe[0])
        moert_layer_share_passes(layer->moe, model->moe[0]->moe);
    return MOERT_OK;
}

static void destroy(moert_model_layer *layer) {
    moert_layer_destroy(layer->moe);
}

static moert_status forward(moert_run *run, moert_run_layer *layer, moert_buffer *y) {
    const moert_recipe *recipe = &run->config->recipe;
    const size_t index = layer->of->moe_index;
    moert_batch batch = run->batch;
    batch.forward_only |= run->discards;
    batch.draws = moert_rng_key(batch.draws, 0, index);
    batch.bf16_operands |= moert_recipe_keeps_bf16(recipe, index, run->model->moe_layers);
    moert_model_discard(layer);
    batch.bf16 = run->bf16;
    return moert_layer_forward(layer->of->moe, &batch, layer->activations->post_normed, y,
                               &layer->pass);
}

static moert_status backward(moert_run *run, moert_run_layer *layer, const moert_model_gradient *dy,
                             bool accumulate) {
    const double rows = run->rows;
    const moert_layer_losses losses = {
        .size = sizeof losses,
        .aux_gradient = run->losses.aux_coefficient != 0.0 ? layer->aux_gradient : NULL,
        .z_factor =
            rows > 0.0 ? (float)(2.0 * run->losses.z_coefficient * run->factor / rows) : 0.0f,
        .accumulate = accumulate,
        .aux_by_sequence = run->losses.aux_form == MOERT_AUX_SEQUENCE,
        .dy_bf16 = dy->bf16};
    MOERT_TRY(moert_pass_backward(layer->pass, dy->d, &losses, run->dn));
    if (moert_model_recomputes(run->model))
        moert_model_discard(layer); /* the next layer reuses the memory of this pass */
    return MOERT_OK;
}

static moert_block *block(const moert_model_layer *layer, size_t index) {
    return moert_layer_block(layer->moe, index);
}

static moert_status reduce_start(moert_model *model, moert_model_layer *layer, bool last) {
    (void)model;
    return moert_layer_reduce_start(layer->moe, last);
}

static moert_status reduce_progress(moert_model_layer *layer) {
    return moert_layer_reduce_progress(layer->moe);
}

static moert_status reduce_wait(moert_model_layer *layer) {
    return moert_layer_reduce_wait(layer->moe);
}

static void weights_changed(moert_model_layer *layer) {
    moert_layer_weights_changed(layer->moe);
}

const moert_mlp_variant moert_model_moe = {create,          destroy,     forward,
                                           backward,        block,       reduce_start,
                                           reduce_progress, reduce_wait, weights_changed};
