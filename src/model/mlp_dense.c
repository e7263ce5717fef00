/* The MLP of a dense layer: one GLU for all tokens. */
#include "layer/dense_glu.h"
#include "model/sublayer.h"

static moert_status create(moert_model *model, moert_model_layer *layer) {
    return moert_comm_agree(model->mesh->world,
                            moert_model_create_block(model, MOERT_MODEL_DENSE, &layer->mlp));
}

static void destroy(moert_model_layer *layer) {
    moert_block_destroy(layer->mlp);
}

static moert_dense_glu glu_of(const moert_run *run, const moert_run_layer *layer) {
    const moert_model_config *c = run->config;
    return (moert_dense_glu){.mesh = run->mesh,
                             .block = layer->of->mlp,
                             .hidden = c->hidden,
                             .width = c->dense_intermediate,
                             .form = c->glu,
                             .type = moert_model_type(run->model),
                             .x = layer->activations->post_normed,
                             .v = layer->activations->mlp_v,
                             .h = layer->activations->mlp_h,
                             .batch = run->batch,
                             .drop_v = run->batch.forward_only || run->discards};
}

static moert_status forward(moert_run *run, moert_run_layer *layer, moert_buffer *y) {
    const moert_dense_glu glu = glu_of(run, layer);
    return moert_dense_glu_forward(&glu, y);
}

static moert_status backward(moert_run *run, moert_run_layer *layer, const moert_model_gradient *dy,
                             bool accumulate) {
    const moert_dense_glu glu = glu_of(run, layer);
    MOERT_TRY(moert_block_begin(layer->of->mlp, &run->batch, accumulate));
    return moert_dense_glu_backward(&glu, dy->d, run->dn, false);
}

static moert_block *block(const moert_model_layer *layer, size_t index) {
    return index == 0 ? layer->mlp : NULL;
}

static moert_status reduce_start(moert_model *model, moert_model_layer *layer, bool last) {
    (void)last;
    return moert_block_reduce_start(layer->mlp, model->mesh->spans);
}

static moert_status reduce_progress(moert_model_layer *layer) {
    return moert_block_reduce_progress(layer->mlp);
}

static moert_status reduce_wait(moert_model_layer *layer) {
    return moert_block_reduce_wait(layer->mlp);
}

static void weights_changed(moert_model_layer *layer) {
    moert_block_weights_changed(layer->mlp);
}

const moert_mlp_variant moert_model_dense = {create,          destroy,     forward,
                                             backward,        block,       reduce_start,
                                             reduce_progress, reduce_wait, weights_changed};
