/* The model's backward pass, from the gradient of the logits to the gradients of all parameters. */
#include "base/memory.h"
#include "base/phase.h"
#include "model/sublayer.h"

static moert_buffer **partial_scratch(moert_model *model) {
    return &model->mesh->scratch[MOERT_SCRATCH_PARTIAL];
}

/* d = gradient of the last layer's result, from the gradient of the logits. The weight gradient of
 * a tied head is collected with the embedding's (differentiate_tied). */
static moert_status differentiate_logits(moert_model *model, const moert_buffer *x) {
    const moert_model_config *c = &model->config;
    moert_gemm gemm = moert_model_head_gradient(model);
    moert_phase_set(MOERT_PHASE_LOGITS_BACKWARD);
    if (c->tied_embeddings) {
        gemm.kind = MOERT_GEMM_DGRAD;
        gemm.x = model->dn;
        MOERT_TRY(moert_block_gemm(model->outer, OUTER_EMBED, &gemm));
    } else {
        MOERT_TRY(
            moert_model_differentiate_dense(model, model->outer, OUTER_HEAD, &gemm, model->dn));
    }
    return moert_model_differentiate_rows(model, model->outer, OUTER_NORM, x, model->final_rstd,
                                          false);
}

/* Collects the gradient of a tied embedding. Adds the head's gradient within each sequence. */
static moert_status differentiate_tied(moert_model *model) {
    const moert_model_config *c = &model->config;
    size_t sequences = model->batch.sequences, row_floats = moert_max(sequences, 1) * c->hidden;
    size_t most = moert_block_partial_bytes(model->device) / (row_floats * sizeof(float));
    size_t rows = moert_min(c->vocabulary, moert_max(1, most));
    MOERT_TRY(moert_model_reserve(model, rows * row_floats, partial_scratch(model)));
    for (size_t row = 0; row < c->vocabulary && sequences > 0; row += rows) {
        size_t count = moert_min(rows, c->vocabulary - row);
        MOERT_TRY(
            moert_embedding_backward(&(moert_embedding_part){.sequences = sequences,
                                                             .length = model->length,
                                                             .hidden = c->hidden,
                                                             .first_row = row,
                                                             .rows = count,
                                                             .token = model->tokens,
                                                             .dx = model->d,
                                                             .partial = *partial_scratch(model)}));
        moert_gemm gemm = moert_model_head_gradient(model);
        gemm.kind = MOERT_GEMM_WGRAD;
        gemm.n = count;
        gemm.weight = *partial_scratch(model);
        gemm.y_column = row;
        gemm.accumulate = true;
        MOERT_TRY(moert_gemm_run(&gemm));
        MOERT_TRY(moert_block_collect(model->outer, OUTER_EMBED, &model->batch, row * c->hidden,
                                      count * c->hidden, *partial_scratch(model)));
    }
    return MOERT_OK;
}

static moert_status differentiate_embedding(moert_model *model) {
    const moert_model_config *c = &model->config;
    moert_phase_set(MOERT_PHASE_EMBEDDING_BACKWARD);
    if (c->tied_embeddings)
        return differentiate_tied(model);
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

/* Waits for the device and meanwhile advances the sums of the layer `under_way`. */
static moert_status wait_for_device(moert_model *model, moert_model_layer *under_way) {
    if (moert_comm_size(model->mesh->world) == 1)
        return MOERT_OK;
    return moert_device_wait(model->device, progress_sums, under_way);
}

static moert_status end_sums(moert_model_layer *layer) {
    MOERT_TRY(moert_model_mlp_of(layer)->reduce_wait(layer));
    return moert_block_reduce_wait(layer->attention);
}

/* Backward of layer `index`. Starts its sums when its gradients are complete, and waits for the
 * sums of the layer above. */
static moert_status differentiate_layer(moert_model *model, size_t index, bool accumulate,
                                        bool last) {
    moert_model_layer *layer = &model->layer[index], *above = layer + 1;
    const bool is_top = index + 1 == model->config.layers;
    MOERT_TRY(moert_model_differentiate_mlp(model, layer, accumulate));
    MOERT_TRY(wait_for_device(model, is_top ? layer : above));
    if (!is_top)
        MOERT_TRY(end_sums(above));
    MOERT_TRY(moert_model_mlp_of(layer)->reduce_start(model, layer, last));
    MOERT_TRY(moert_model_differentiate_attention(model, layer,
                                                  index > 0 ? layer[-1].out : model->embedded));
    MOERT_TRY(wait_for_device(model, layer));
    return moert_block_reduce_start(layer->attention, model->mesh->spans);
}

moert_status moert_model_backward(moert_model *model, size_t index, size_t count) {
    const moert_model_config *c = &model->config;
    const size_t rows = model->batch.tokens * c->hidden;
    MOERT_TRY(moert_model_reserve(model, rows, &model->d));
    MOERT_TRY(moert_model_reserve(model, rows, &model->dn));
    MOERT_TRY(moert_model_reserve_rows(model, model->attention.scratch, model->scratch));
    MOERT_TRY(moert_mesh_gather_spans(model->mesh, &model->batch));
    MOERT_TRY(moert_block_begin(model->outer, &model->batch, index > 0));
    for (size_t i = 0; i < c->layers; i++)
        MOERT_TRY(moert_block_begin(model->layer[i].attention, &model->batch, index > 0));
    MOERT_TRY(differentiate_logits(model, model->layer[c->layers - 1].out));
    for (size_t i = c->layers; i-- > 0;)
        MOERT_TRY(differentiate_layer(model, i, index > 0, index + 1 == count));
    MOERT_TRY(differentiate_embedding(model));
    MOERT_TRY(wait_for_device(model, &model->layer[0]));
    MOERT_TRY(end_sums(&model->layer[0]));
    MOERT_TRY(moert_block_reduce_start(model->outer, model->mesh->spans));
    MOERT_TRY(moert_block_reduce_wait(model->outer));
    return moert_mesh_settle(model->mesh);
}
