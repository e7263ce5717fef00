/* The model's forward pass, from tokens to logits. */
#include <stdlib.h>

#include "base/memory.h"
#include "base/phase.h"
#include "model/internal.h"
#include "nn/nn.h"

/* Uploads the links between equal tokens that moert_embedding_gradient needs. */
static moert_status link_tokens(moert_model *model, const int32_t *token) {
    const size_t bytes = 2 * model->batch.tokens * sizeof(int32_t);
    int32_t *links;
    if (model->config.tied_embeddings || model->batch.forward_only)
        return MOERT_OK;
    MOERT_TRY(moert_buffer_reserve(model->device, bytes, &model->links));
    MOERT_TRY(moert_alloc(&links, bytes, 1));
    moert_status status = moert_embedding_links(moert_batch_span(&model->batch), model->length,
                                                model->config.vocabulary, token, links);
    if (status == MOERT_OK)
        status = moert_buffer_write(model->links, 0, links, bytes);
    free(links);
    return status;
}

/* Uploads this rank's sequences of the batch. */
static moert_status take_batch(moert_model *model, const moert_model_batch *batch) {
    size_t first, count, length = batch->length;
    moert_model_partition(batch->total_sequences, moert_comm_rank(model->mesh->world),
                          moert_comm_size(model->mesh->world), &first, &count);
    size_t tokens = count * length, bytes = tokens * sizeof(int32_t);
    MOERT_TRY(moert_model_config_check_length(&model->config, length));
    MOERT_TRY(moert_buffer_reserve(model->device, count * sizeof(uint32_t), &model->ends));
    MOERT_TRY(moert_buffer_write_ends(count, length, model->ends));
    MOERT_TRY(moert_buffer_reserve(model->device, bytes, &model->tokens));
    MOERT_TRY(moert_buffer_reserve(model->device, bytes, &model->targets));
    MOERT_TRY(moert_buffer_write(model->tokens, 0, batch->input, bytes));
    if (batch->target != NULL)
        MOERT_TRY(moert_buffer_write(model->targets, 0, batch->target, bytes));
    model->batch = (moert_batch){
        sizeof model->batch, tokens, count, first, batch->total_sequences, model->ends,
        batch->forward_only};
    model->length = length;
    return link_tokens(model, batch->input);
}

static moert_status reserve_layer(moert_model *model, moert_model_layer *layer) {
    const moert_model_config *c = &model->config;
    size_t t = model->batch.tokens, q = t * c->heads * c->head_size,
           kv = t * c->kv_heads * c->head_size;
    const struct {
        moert_buffer **buffer;
        size_t floats;
    } rows[] = {
        {&layer->normed, moert_operand_floats(moert_model_type(model), t * c->hidden)},
        {&layer->rstd, t},
        {&layer->q, q},
        {&layer->k, kv},
        {&layer->v, kv},
        {&layer->attended, q},
        {&layer->lse, t * c->heads},
        {&layer->middle, t * c->hidden},
        {&layer->post_normed, t * c->hidden},
        {&layer->post_rstd, t},
        {&layer->out, t * c->hidden},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++)
        MOERT_TRY(moert_model_reserve(model, rows[i].floats, rows[i].buffer));
    if (!c->qk_norm)
        return MOERT_OK;
    MOERT_TRY(moert_model_reserve(model, q, &layer->q_raw));
    MOERT_TRY(moert_model_reserve(model, kv, &layer->k_raw));
    MOERT_TRY(moert_model_reserve(model, t * c->heads, &layer->q_rstd));
    return moert_model_reserve(model, t * c->kv_heads, &layer->k_rstd);
}

/* normed[T,H] = norm(x) in the operands' dtype; tensor `index` of `block` is the norm's weight. */
static moert_status normalise(moert_model *model, const moert_block *block, size_t index,
                              const moert_buffer *x, moert_buffer *normed, moert_buffer *rstd) {
    const moert_model_config *c = &model->config;
    const moert_dtype type = moert_model_type(model);
    return moert_norm_run(&(moert_norm){.rows = model->batch.tokens,
                                        .width = c->hidden,
                                        .epsilon = c->norm_epsilon,
                                        .x = x,
                                        .weight = block->tensor[index].weight,
                                        .y = type == MOERT_DTYPE_F32 ? normed : NULL,
                                        .bf16 = type == MOERT_DTYPE_F32 ? NULL : normed,
                                        .rstd = rstd});
}

/* Computes q or k: projection, then a norm over each head if the model has one, then rotation. */
static moert_status project_heads(moert_model *model, const moert_model_layer *layer,
                                  const moert_model_heads *h) {
    const moert_model_config *c = &model->config;
    size_t tokens = model->batch.tokens;
    const moert_rotation rotation = {
        .table = model->rope, .heads = h->count, .length = model->length};
    const moert_gemm gemm = moert_model_gemm(model, h->count * c->head_size, c->hidden,
                                             layer->normed, c->qk_norm ? h->raw : h->rotated);
    MOERT_TRY(moert_block_gemm(layer->attention, h->weight, &gemm));
    if (!c->qk_norm)
        return moert_rope(&rotation, tokens, c->head_size, false, h->rotated);
    return moert_norm_run(&(moert_norm){.rows = tokens * h->count,
                                        .width = c->head_size,
                                        .epsilon = c->norm_epsilon,
                                        .x = h->raw,
                                        .weight = layer->attention->tensor[h->norm].weight,
                                        .y = h->rotated,
                                        .rstd = h->rstd,
                                        .rotation = rotation});
}

/* middle = x + attention(norm(x)) */
static moert_status attend(moert_model *model, moert_model_layer *layer, const moert_buffer *x) {
    const moert_model_config *c = &model->config;
    size_t tokens = model->batch.tokens, q = c->heads * c->head_size,
           kv = c->kv_heads * c->head_size;
    moert_model_heads heads[MOERT_MODEL_ROTATED];
    moert_phase_set(MOERT_PHASE_ATTENTION);
    MOERT_TRY(normalise(model, layer->attention, ATTN_INPUT_NORM, x, layer->normed, layer->rstd));
    moert_model_heads_of(model, layer, heads);
    for (size_t i = 0; i < MOERT_MODEL_ROTATED; i++)
        MOERT_TRY(project_heads(model, layer, &heads[i]));
    moert_gemm gemm = moert_model_gemm(model, kv, c->hidden, layer->normed, layer->v);
    MOERT_TRY(moert_block_gemm(layer->attention, ATTN_V, &gemm));
    moert_attention attention = moert_model_attention(model, layer);
    gemm = moert_model_gemm(model, c->hidden, q, NULL, layer->middle);
    MOERT_TRY(moert_model_attended(model, &attention, &gemm.x));
    MOERT_TRY(moert_attention_forward(&attention));
    MOERT_TRY(moert_block_gemm(layer->attention, ATTN_O, &gemm));
    return moert_add(tokens * c->hidden, x, layer->middle);
}

/* out = middle + moe(norm(middle)) */
static moert_status run_moe(moert_model *model, moert_model_layer *layer) {
    const moert_model_config *c = &model->config;
    size_t tokens = model->batch.tokens;
    MOERT_TRY(
        moert_norm_run(&(moert_norm){.rows = tokens,
                                     .width = c->hidden,
                                     .epsilon = c->norm_epsilon,
                                     .x = layer->middle,
                                     .weight = layer->attention->tensor[ATTN_POST_NORM].weight,
                                     .y = layer->post_normed,
                                     .bf16 = model->bf16,
                                     .rstd = layer->post_rstd}));
    moert_layer_give_bf16(layer->moe, model->bf16);
    moert_pass_destroy(layer->pass);
    layer->pass = NULL;
    MOERT_TRY(moert_layer_forward(layer->moe, &model->batch, layer->post_normed, layer->out,
                                  &layer->pass));
    return moert_add(tokens * c->hidden, layer->middle, layer->out);
}

static moert_status project_logits(moert_model *model, const moert_buffer *x) {
    const moert_model_config *c = &model->config;
    size_t tokens = model->batch.tokens;
    moert_phase_set(MOERT_PHASE_LOGITS);
    MOERT_TRY(moert_model_reserve(model,
                                  moert_operand_floats(moert_model_type(model), tokens * c->hidden),
                                  &model->final_normed));
    MOERT_TRY(moert_model_reserve(model, tokens, &model->final_rstd));
    MOERT_TRY(moert_model_reserve(model, tokens * c->vocabulary, &model->logits));
    MOERT_TRY(
        normalise(model, model->outer, OUTER_NORM, x, model->final_normed, model->final_rstd));
    const moert_gemm gemm =
        moert_model_gemm(model, c->vocabulary, c->hidden, model->final_normed, model->logits);
    return moert_block_gemm(model->outer, moert_model_head(model), &gemm);
}

moert_status moert_model_forward(moert_model *model, const moert_model_batch *batch) {
    const moert_model_config *c = &model->config;
    moert_phase_set(MOERT_PHASE_EMBEDDING);
    MOERT_TRY(take_batch(model, batch));
    if (model->rope == NULL || model->rope_length < model->length) {
        moert_buffer_destroy(model->rope);
        model->rope = NULL;
        model->rope_length = model->length;
        const moert_rope_scheme scheme = {.width = c->head_size, .theta = c->rope_theta};
        MOERT_TRY(moert_rope_table_create(model->device, &scheme, model->length, &model->rope));
    }
    MOERT_TRY(moert_model_reserve(model, model->batch.tokens * c->hidden, &model->embedded));
    if (moert_model_type(model) != MOERT_DTYPE_F32)
        MOERT_TRY(moert_model_reserve(
            model, moert_operand_floats(moert_model_type(model), model->batch.tokens * c->hidden),
            &model->bf16));
    MOERT_TRY(moert_embedding_forward(model->batch.tokens, c->hidden,
                                      model->outer->tensor[OUTER_EMBED].weight, model->tokens,
                                      model->embedded));
    const moert_buffer *x = model->embedded;
    for (size_t i = 0; i < c->layers; i++) {
        moert_model_layer *layer = &model->layer[i];
        MOERT_TRY(reserve_layer(model, layer));
        MOERT_TRY(attend(model, layer, x));
        MOERT_TRY(run_moe(model, layer));
        x = layer->out;
    }
    return project_logits(model, x);
}

moert_status moert_model_logits(moert_model *model, size_t token, float *out) {
    size_t bytes = model->config.vocabulary * sizeof(float);
    return moert_buffer_read(model->logits, token * bytes, out, bytes);
}
