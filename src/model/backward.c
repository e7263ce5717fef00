/* The model's backward pass, from the gradient of the logits to the gradients of all parameters. */
#include "base/memory.h"
#include "base/phase.h"
#include "model/internal.h"
#include "ops/dense.h"

enum {
    EMBEDDING_PARTIAL_FLOATS = 16 * 1024 * 1024
}; /* table rows are differentiated in pieces of this size */

static moert_buffer **partial_scratch(moert_model *model) {
    return &model->mesh->scratch[MOERT_SCRATCH_PARTIAL];
}

/* [T,H] of a layer's forward, which is over. */
static moert_buffer **norm_scratch(moert_model *model) {
    return &model->mesh->scratch[MOERT_SCRATCH_TOKENS];
}

static moert_status reserve_scratch(moert_model *model) {
    const moert_model_config *c = &model->config;
    size_t t = model->batch.tokens, q = t * c->heads * c->head_size,
           kv = t * c->kv_heads * c->head_size;
    MOERT_TRY(moert_model_reserve(model, t * c->hidden, &model->d));
    MOERT_TRY(moert_model_reserve(model, t * c->hidden, &model->dn));
    MOERT_TRY(moert_model_reserve(model, q, &model->datt));
    MOERT_TRY(moert_model_reserve(model, q, &model->dq));
    MOERT_TRY(moert_model_reserve(model, kv, &model->dk));
    return moert_model_reserve(model, kv, &model->dv);
}

/* Gradient through a norm: dx (+)= ..., and of its weight as tensor `index` of `block`. */
static moert_status differentiate_norm(moert_model *model, moert_block *block, size_t index,
                                       size_t rows, size_t width, const moert_buffer *x,
                                       const moert_buffer *rstd, const moert_buffer *dy,
                                       moert_buffer *dx, bool accumulate) {
    size_t sequences = model->batch.sequences;
    MOERT_TRY(moert_model_reserve(model, sequences * width, partial_scratch(model)));
    moert_buffer *partial = *partial_scratch(model);
    MOERT_TRY(moert_norm_backward(&(moert_norm_gradient){.sequences = sequences,
                                                         .rows = rows,
                                                         .width = width,
                                                         .x = x,
                                                         .weight = block->tensor[index].weight,
                                                         .rstd = rstd,
                                                         .dy = dy,
                                                         .dx = dx,
                                                         .accumulate = accumulate,
                                                         .partial = partial,
                                                         .scratch = norm_scratch(model)}));
    return moert_block_collect(block, index, &model->batch, 0, width, partial);
}

/* Gradient through y = x weight^T: dx (+)= dy weight, and of the weight as tensor `index` of
 * `block`. */
static moert_status differentiate_dense(moert_model *model, moert_block *block, size_t index,
                                        size_t n, size_t k, const moert_buffer *x,
                                        const moert_buffer *dy, moert_buffer *dx, bool accumulate) {
    moert_gemm gemm = moert_model_gemm(model, n, k, x, dy);
    MOERT_TRY(moert_block_dense_gradient(block, index, &model->batch, &gemm, false,
                                         partial_scratch(model)));
    gemm.x = dx;
    gemm.accumulate = accumulate;
    return moert_block_dgrad(block, index, &gemm);
}

/* d = gradient of the last layer's result, from that of the logits; a tied head's own gradient
 * comes with the embedding's. */
static moert_status differentiate_logits(moert_model *model, const moert_buffer *x) {
    const moert_model_config *c = &model->config;
    moert_phase_set("logits backward");
    if (c->tied_embeddings) {
        const moert_gemm gemm =
            moert_model_gemm(model, c->vocabulary, c->hidden, model->dn, model->logits);
        MOERT_TRY(moert_block_dgrad(model->outer, OUTER_EMBED, &gemm));
    } else {
        MOERT_TRY(differentiate_dense(model, model->outer, OUTER_HEAD, c->vocabulary, c->hidden,
                                      model->final_normed, model->logits, model->dn, false));
    }
    return differentiate_norm(model, model->outer, OUTER_NORM, model->batch.tokens, c->hidden, x,
                              model->final_rstd, model->dn, model->d, false);
}

/* q or k backwards: rotation, norm, then the projection, into dn. */
static moert_status differentiate_heads(moert_model *model, moert_model_layer *layer, size_t weight,
                                        size_t norm, size_t heads, const moert_buffer *raw,
                                        const moert_buffer *rstd, moert_buffer *dx,
                                        bool accumulate) {
    const moert_model_config *c = &model->config;
    size_t tokens = model->batch.tokens;
    MOERT_TRY(moert_rope(tokens, model->length, heads, c->head_size, model->rope, true, dx));
    if (c->qk_norm)
        MOERT_TRY(differentiate_norm(model, layer->attention, norm, tokens * heads, c->head_size,
                                     raw, rstd, dx, dx, false));
    return differentiate_dense(model, layer->attention, weight, heads * c->head_size, c->hidden,
                               layer->normed, dx, model->dn, accumulate);
}

/* d += gradient through the attention half of a layer. */
static moert_status differentiate_attention(moert_model *model, moert_model_layer *layer,
                                            const moert_buffer *x) {
    const moert_model_config *c = &model->config;
    size_t q = c->heads * c->head_size;
    moert_phase_set("attention backward");
    MOERT_TRY(differentiate_dense(model, layer->attention, ATTN_O, c->hidden, q, layer->attended,
                                  model->d, model->datt, false));
    moert_attention attention = moert_model_attention(model, layer);
    attention.dout = model->datt;
    attention.dq = model->dq;
    attention.dk = model->dk;
    attention.dv = model->dv;
    MOERT_TRY(moert_attention_backward(&attention));
    MOERT_TRY(differentiate_heads(model, layer, ATTN_Q, ATTN_Q_NORM, c->heads, layer->q_raw,
                                  layer->q_rstd, model->dq, false));
    MOERT_TRY(differentiate_heads(model, layer, ATTN_K, ATTN_K_NORM, c->kv_heads, layer->k_raw,
                                  layer->k_rstd, model->dk, true));
    MOERT_TRY(differentiate_dense(model, layer->attention, ATTN_V, c->kv_heads * c->head_size,
                                  c->hidden, layer->normed, model->dv, model->dn, true));
    return differentiate_norm(model, layer->attention, ATTN_INPUT_NORM, model->batch.tokens,
                              c->hidden, x, layer->rstd, model->dn, model->d, true);
}

/* d += gradient through the MoE half of a layer. */
static moert_status differentiate_moe(moert_model *model, moert_model_layer *layer,
                                      bool accumulate) {
    double tokens = (double)(model->batch.total_sequences * model->length);
    const moert_layer_losses losses = {
        .aux_gradient = model->losses.aux_coefficient != 0.0 ? layer->aux_gradient : NULL,
        .z_factor =
            tokens > 0 ? (float)(2.0 * model->losses.z_coefficient * model->factor / tokens) : 0.0f,
        .accumulate = accumulate};
    MOERT_TRY(moert_layer_backward(layer->moe, model->d, &losses, model->dn));
    return differentiate_norm(model, layer->attention, ATTN_POST_NORM, model->batch.tokens,
                              model->config.hidden, layer->middle, layer->post_rstd, model->dn,
                              model->d, true);
}

/* The embedding's gradient; a tied head's is added to it within each sequence. */
static moert_status differentiate_embedding(moert_model *model) {
    const moert_model_config *c = &model->config;
    size_t sequences = model->batch.sequences, row_floats = moert_max(sequences, 1) * c->hidden;
    size_t rows = moert_min(c->vocabulary, moert_max(1, EMBEDDING_PARTIAL_FLOATS / row_floats));
    moert_phase_set("embedding backward");
    MOERT_TRY(moert_model_reserve(model, rows * row_floats, partial_scratch(model)));
    for (size_t row = 0; row < c->vocabulary && sequences > 0; row += rows) {
        size_t count = moert_min(rows, c->vocabulary - row);
        MOERT_TRY(moert_embedding_backward(sequences, model->length, c->hidden, model->tokens,
                                           model->d, row, count, *partial_scratch(model)));
        if (c->tied_embeddings) {
            moert_gemm gemm =
                moert_model_gemm(model, count, c->hidden, model->final_normed, model->logits);
            gemm.weight = *partial_scratch(model);
            gemm.ldy = c->vocabulary;
            gemm.y_column = row;
            gemm.accumulate = true;
            MOERT_TRY(moert_gemm_wgrad(&gemm));
        }
        MOERT_TRY(moert_block_collect(model->outer, OUTER_EMBED, &model->batch, row * c->hidden,
                                      count * c->hidden, *partial_scratch(model)));
    }
    return MOERT_OK;
}

static moert_status reduce(moert_model *model, bool accumulate, bool last) {
    moert_comm *world = model->mesh->world;
    MOERT_TRY(moert_block_reduce(model->outer, world, &model->batch, accumulate));
    for (size_t i = 0; i < model->config.layers; i++) {
        MOERT_TRY(moert_block_reduce(model->layer[i].attention, world, &model->batch, accumulate));
        MOERT_TRY(moert_layer_reduce(model->layer[i].moe, accumulate, last));
    }
    return MOERT_OK;
}

moert_status moert_model_backward(moert_model *model, size_t index, size_t count) {
    const moert_model_config *c = &model->config;
    MOERT_TRY(reserve_scratch(model));
    MOERT_TRY(moert_block_begin(model->outer, &model->batch));
    for (size_t i = 0; i < c->layers; i++)
        MOERT_TRY(moert_block_begin(model->layer[i].attention, &model->batch));
    MOERT_TRY(differentiate_logits(model, model->layer[c->layers - 1].out));
    for (size_t i = c->layers; i-- > 0;) {
        moert_model_layer *layer = &model->layer[i];
        MOERT_TRY(differentiate_moe(model, layer, index > 0));
        MOERT_TRY(differentiate_attention(model, layer,
                                          i > 0 ? model->layer[i - 1].out : model->embedded));
    }
    MOERT_TRY(differentiate_embedding(model));
    return reduce(model, index > 0, index + 1 == count);
}
