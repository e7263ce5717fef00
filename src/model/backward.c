/* The model's backward pass, from the gradient of the logits to the gradients of all parameters. */
#include "base/memory.h"
#include "base/phase.h"
#include "model/internal.h"
#include "nn/nn.h"

static moert_buffer **partial_scratch(moert_model *model) {
    return &model->mesh->scratch[MOERT_SCRATCH_PARTIAL];
}

/* Backward of a norm, and the gradient of its weight, tensor `index` of `block`. The caller fills
 * in the rows, buffers and options in `own`. */
static moert_status differentiate_norm(moert_model *model, moert_block *block, size_t index,
                                       const moert_norm_gradient *own) {
    moert_norm_gradient norm = *own;
    norm.sequences = model->batch.sequences;
    norm.weight = block->tensor[index].weight;
    /* otherwise only forward uses this scratch buffer */
    norm.scratch = &model->mesh->scratch[MOERT_SCRATCH_TOKENS];
    MOERT_TRY(moert_model_reserve(model, norm.sequences * norm.width, partial_scratch(model)));
    norm.partial = *partial_scratch(model);
    MOERT_TRY(moert_norm_backward(&norm));
    return moert_block_collect(block, index, &model->batch, 0, norm.width, norm.partial);
}

/* Backward of a norm of [T,H]: d = the gradient from dn, or d += with `accumulate`. */
static moert_status differentiate_rows(moert_model *model, moert_block *block, size_t index,
                                       const moert_buffer *x, const moert_buffer *rstd,
                                       bool accumulate) {
    return differentiate_norm(model, block, index,
                              &(moert_norm_gradient){.rows = model->batch.tokens,
                                                     .width = model->config.hidden,
                                                     .x = x,
                                                     .rstd = rstd,
                                                     .dy = model->dn,
                                                     .dx = model->d,
                                                     .bf16 = model->bf16,
                                                     .accumulate = accumulate});
}

/* Backward of the dense GEMM `dense`, whose x and y are operands: collects the gradient of its
 * weight, tensor `index` of `block`, and sets dx = y weight, or dx += with `accumulate`. */
static moert_status differentiate_dense(moert_model *model, moert_block *block, size_t index,
                                        const moert_gemm *dense, moert_buffer *dx,
                                        bool accumulate) {
    moert_gemm gemm = *dense;
    MOERT_TRY(
        moert_block_dense_gradient(block, index, &model->batch, &gemm, partial_scratch(model)));
    gemm.kind = MOERT_GEMM_DGRAD;
    gemm.x = dx;
    gemm.accumulate = accumulate;
    return moert_block_gemm(block, index, &gemm);
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
        MOERT_TRY(differentiate_dense(model, model->outer, OUTER_HEAD, &gemm, model->dn, false));
    }
    return differentiate_rows(model, model->outer, OUTER_NORM, x, model->final_rstd, false);
}

/* Backward of q or k, from `dx`: rotation, norm, then the projection. Writes the result to dn. */
static moert_status differentiate_heads(moert_model *model, moert_model_layer *layer,
                                        const moert_model_heads *h, moert_buffer *dx,
                                        bool accumulate) {
    const moert_model_config *c = &model->config;
    const moert_dtype type = moert_model_type(model);
    const size_t tokens = model->batch.tokens, width = h->count * c->head_size;
    const moert_rotation rotation = {
        .table = model->rope, .heads = h->count, .length = model->length};
    moert_buffer *operand;
    if (c->qk_norm) {
        MOERT_TRY(moert_operand_buffer(model->mesh, type, tokens * width, MOERT_SCRATCH_ROUNDED_Y,
                                       dx, &operand));
        const moert_norm_gradient own = {.rows = tokens * h->count,
                                         .width = c->head_size,
                                         .x = h->raw,
                                         .rstd = h->rstd,
                                         .dy = dx,
                                         .dx = type == MOERT_DTYPE_F32 ? dx : NULL,
                                         .bf16 = type == MOERT_DTYPE_F32 ? NULL : operand,
                                         .rotation = rotation};
        MOERT_TRY(differentiate_norm(model, layer->attention, h->norm, &own));
    } else {
        MOERT_TRY(moert_rope(&rotation, tokens, c->head_size, true, dx));
        MOERT_TRY(moert_model_operand(model, width, dx, MOERT_SCRATCH_ROUNDED_Y, &operand));
    }
    const moert_gemm gemm = moert_model_gemm(model, width, c->hidden, layer->normed, operand);
    return differentiate_dense(model, layer->attention, h->weight, &gemm, model->dn, accumulate);
}

/* d += gradient through the attention half of a layer. */
static moert_status differentiate_attention(moert_model *model, moert_model_layer *layer,
                                            const moert_buffer *x) {
    const moert_model_config *c = &model->config;
    size_t q = c->heads * c->head_size, kv = c->kv_heads * c->head_size;
    moert_buffer *dy = model->bf16 != NULL ? model->bf16 : model->d;
    moert_gemm out = moert_model_gemm(model, c->hidden, q, model->datt, dy);
    moert_model_heads heads[MOERT_MODEL_ROTATED];
    moert_phase_set(MOERT_PHASE_ATTENTION_BACKWARD);
    out.kind = MOERT_GEMM_DGRAD;
    MOERT_TRY(moert_block_gemm(layer->attention, ATTN_O, &out));
    moert_attention attention = moert_model_attention(model, layer);
    MOERT_TRY(moert_model_attended(model, &attention, &out.x));
    attention.dout = model->datt;
    attention.dq = model->dq;
    attention.dk = model->dk;
    attention.dv = model->dv;
    MOERT_TRY(moert_attention_backward(&attention));
    MOERT_TRY(moert_block_dense_gradient(layer->attention, ATTN_O, &model->batch, &out,
                                         partial_scratch(model)));
    moert_model_heads_of(model, layer, heads);
    MOERT_TRY(differentiate_heads(model, layer, &heads[0], model->dq, false));
    MOERT_TRY(differentiate_heads(model, layer, &heads[1], model->dk, true));
    MOERT_TRY(moert_model_operand(model, kv, model->dv, MOERT_SCRATCH_ROUNDED_Y, &dy));
    const moert_gemm v = moert_model_gemm(model, kv, c->hidden, layer->normed, dy);
    MOERT_TRY(differentiate_dense(model, layer->attention, ATTN_V, &v, model->dn, true));
    return differentiate_rows(model, layer->attention, ATTN_INPUT_NORM, x, layer->rstd, true);
}

/* d += gradient through the MoE half of a layer. */
static moert_status differentiate_moe(moert_model *model, moert_model_layer *layer,
                                      bool accumulate) {
    double tokens = (double)(model->batch.total_sequences * model->length);
    const moert_layer_losses losses = {
        .size = sizeof losses,
        .aux_gradient = model->losses.aux_coefficient != 0.0 ? layer->aux_gradient : NULL,
        .z_factor =
            tokens > 0 ? (float)(2.0 * model->losses.z_coefficient * model->factor / tokens) : 0.0f,
        .accumulate = accumulate};
    moert_layer_give_bf16(layer->moe, model->bf16);
    MOERT_TRY(moert_pass_backward(layer->pass, model->d, &losses, model->dn));
    return differentiate_rows(model, layer->attention, ATTN_POST_NORM, layer->middle,
                              layer->post_rstd, true);
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
    MOERT_TRY(moert_layer_reduce_progress(layer->moe));
    return moert_block_reduce_progress(layer->attention);
}

/* Waits for the device and meanwhile advances the sums of the layer `under_way`. */
static moert_status wait_for_device(moert_model *model, moert_model_layer *under_way) {
    if (moert_comm_size(model->mesh->world) == 1)
        return MOERT_OK;
    return moert_device_wait(model->device, progress_sums, under_way);
}

static moert_status end_sums(moert_model_layer *layer) {
    MOERT_TRY(moert_layer_reduce_wait(layer->moe));
    return moert_block_reduce_wait(layer->attention);
}

/* Backward of layer `index`. Starts its sums when its gradients are complete, and waits for the
 * sums of the layer above. */
static moert_status differentiate_layer(moert_model *model, size_t index, bool accumulate,
                                        bool last) {
    moert_model_layer *layer = &model->layer[index], *above = layer + 1;
    const bool is_top = index + 1 == model->config.layers;
    MOERT_TRY(differentiate_moe(model, layer, accumulate));
    MOERT_TRY(wait_for_device(model, is_top ? layer : above));
    if (!is_top)
        MOERT_TRY(end_sums(above));
    MOERT_TRY(moert_layer_reduce_start(layer->moe, last));
    MOERT_TRY(differentiate_attention(model, layer, index > 0 ? layer[-1].out : model->embedded));
    MOERT_TRY(wait_for_device(model, layer));
    return moert_block_reduce_start(layer->attention, model->mesh->spans);
}

moert_status moert_model_backward(moert_model *model, size_t index, size_t count) {
    const moert_model_config *c = &model->config;
    const size_t t = model->batch.tokens, q = t * c->heads * c->head_size,
                 kv = t * c->kv_heads * c->head_size;
    MOERT_TRY(moert_model_reserve(model, t * c->hidden, &model->d));
    MOERT_TRY(moert_model_reserve(model, t * c->hidden, &model->dn));
    MOERT_TRY(moert_model_reserve(model, q, &model->datt));
    MOERT_TRY(moert_model_reserve(model, q, &model->dq));
    MOERT_TRY(moert_model_reserve(model, kv, &model->dk));
    MOERT_TRY(moert_model_reserve(model, kv, &model->dv));
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
