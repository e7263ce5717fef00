/* The model's backward pass, from the gradient of the last norm's result to the gradients of all
 * parameters. */
#include "base/memory.h"
#include "base/phase.h"
#include "device/queue.h"
#include "model/audit_points.h"
#include "model/sublayer.h"

/* Sets run->d_embedded. */
static moert_status scale_gradient(moert_run *run) {
    const moert_model_config *c = run->config;
    const size_t floats = run->batch.tokens * c->hidden;
    const bool scales = moert_or_one(c->embedding_scale) != 1.0f;
    run->d_embedded = scales ? run->dn : run->d;
    if (!scales)
        return MOERT_OK;
    MOERT_TRY(moert_buffer_copy(run->d, 0, run->dn, 0, floats * sizeof(float)));
    return moert_scale(floats, c->embedding_scale, run->dn);
}

moert_status moert_model_embed_backward(moert_run *run) {
    const moert_model_config *c = run->config;
    moert_phase_set(MOERT_PHASE_EMBEDDING_BACKWARD);
    MOERT_TRY(scale_gradient(run));
    if (c->tied_embeddings)
        MOERT_TRY(moert_head_collect_tied(run));
    else
        MOERT_TRY(moert_embedding_gradient(&(moert_embedding_sum){
            .length = run->length,
            .hidden = c->hidden,
            .rows = c->vocabulary,
            .token = run->tokens,
            .link = run->links,
            .dx = run->d_embedded,
            .at = moert_block_nodes(run->outer, OUTER_EMBED, &run->batch, 0)}));
    return moert_audit_at(run, NULL, MOERT_AUDIT_ALL_DONE);
}

/* ---- sums of gradients over ranks, which overlap with the backward of the next layer ---- */

static moert_status progress_sums(void *context) {
    moert_model_layer *layer = context;
    MOERT_TRY(moert_model_mlp_of(layer)->reduce_progress(layer));
    return moert_block_reduce_progress(layer->attention);
}

/* If hosts sum the gradients, waits for the device, and meanwhile advances the sums of layer
 * `under_way`. */
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

/* Recomputes a layer's activations. */
static moert_status recompute_layer(moert_run *run, size_t index) {
    run->discards = false;
    set_repeating(run->layer[index].of, true);
    const moert_status status = moert_model_run_layer(run, index);
    set_repeating(run->layer[index].of, false);
    return status;
}

/* Backward of layer `index`. Starts the sums of the layer's gradients over the ranks when these
 * gradients are complete, and waits for the sums of the layer above. */
static moert_status layer_backward(moert_run *run, size_t index, bool last) {
    moert_run_layer *layer = &run->layer[index], *above = layer + 1;
    const bool is_top = index + 1 == run->config->layers;
    if (moert_model_recomputes(run->model) && !is_top)
        MOERT_TRY(recompute_layer(run, index));
    MOERT_TRY(moert_block_begin(layer->of->attention, &run->batch, run->accumulate));
    MOERT_TRY(moert_model_mlp_backward(run, layer, run->accumulate));
    MOERT_TRY(wait_for_device(run->model, is_top ? layer->of : above->of));
    if (!is_top)
        MOERT_TRY(end_sums(above->of));
    MOERT_TRY(moert_model_mlp_of(layer->of)->reduce_start(run->model, layer->of, last));
    MOERT_TRY(moert_model_attention_backward(run, layer, moert_model_input(run, index)));
    MOERT_TRY(moert_audit_check_part(run, index));
    MOERT_TRY(wait_for_device(run->model, layer->of));
    MOERT_TRY(moert_block_reduce_start(layer->of->attention, run->mesh->spans));
    if (!moert_audit_checks(run))
        return MOERT_OK;
    MOERT_TRY(end_sums(layer->of));
    return moert_audit_check_sums(run, index);
}

moert_status moert_run_backward(moert_run *run, bool last) {
    const moert_model_config *c = run->config;
    MOERT_TRY(moert_model_reserve_rows(run, run->model->attention.scratch, run->scratch));
    MOERT_TRY(moert_mesh_gather_spans(run->mesh, &run->batch));
    moert_phase_set(MOERT_PHASE_LOGITS_BACKWARD);
    MOERT_TRY(moert_model_normalise_backward(
        run, run->outer, OUTER_NORM, run->layer[c->layers - 1].out, run->final_rstd, false));
    MOERT_TRY(moert_audit_at(run, NULL, MOERT_AUDIT_HEAD_DONE));
    for (size_t i = c->layers; i-- > 0;)
        MOERT_TRY(layer_backward(run, i, last));
    MOERT_TRY(moert_model_embed_backward(run));
    MOERT_TRY(moert_audit_check_part(run, c->layers));
    MOERT_TRY(wait_for_device(run->model, run->layer[0].of));
    MOERT_TRY(end_sums(run->layer[0].of));
    MOERT_TRY(moert_block_reduce_start(run->outer, run->mesh->spans));
    MOERT_TRY(moert_block_reduce_wait(run->outer));
    MOERT_TRY(moert_audit_check_sums(run, c->layers));
    return moert_mesh_settle(run->mesh);
}
