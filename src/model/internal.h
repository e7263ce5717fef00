/* The model's struct and functions that its files share. */
#pragma once

#include <math.h>

#include "attention/attention.h"
#include "layer/operand.h"
#include "model/model.h"
#include "nn/nn.h"

/* Tensors of an attention block and of the outer block, in order. */
enum {
    ATTN_INPUT_NORM,
    ATTN_Q,
    ATTN_K,
    ATTN_V,
    ATTN_O,
    ATTN_Q_NORM,
    ATTN_K_NORM,
    ATTN_POST_NORM,
    ATTN_TENSORS
};
enum { OUTER_EMBED, OUTER_NORM, OUTER_HEAD, OUTER_TENSORS };

typedef struct moert_model_layer {
    moert_block *attention;
    moert_layer *moe;
    moert_pass *pass;           /* of the last forward */
    moert_buffer *aux_gradient; /* [E] gradient of the last auxiliary loss */

    /* activations of the last forward; T rows each */
    moert_buffer *normed, *rstd;           /* [T,H] as operands (layer/operand.h), [T] */
    moert_buffer *q_raw, *k_raw;           /* before q_norm and k_norm, if the model has these */
    moert_buffer *q_rstd, *k_rstd;         /* [T,heads], [T,kv_heads] */
    moert_buffer *q, *k, *v;               /* after the rotation */
    moert_buffer *attended, *lse;          /* [T,heads*head_size], [T,heads] */
    moert_buffer *middle;                  /* [T,H] residual after attention */
    moert_buffer *post_normed, *post_rstd; /* input of the MoE layer */
    moert_buffer *out;                     /* [T,H] residual after the MoE layer */
} moert_model_layer;

struct moert_model {
    moert_mesh *mesh;
    moert_device *device;
    moert_model_config config;
    moert_block *outer;
    moert_model_layer *layer; /* [layers] */
    moert_model_tensor *tensor;
    size_t tensor_count;
    moert_buffer *rope;
    size_t rope_length;

    /* the last batch */
    moert_batch batch;
    size_t length;
    moert_buffer *ends, *tokens, *targets;
    moert_buffer *links;    /* [T,2], see moert_embedding_links; untied head only */
    moert_buffer *embedded; /* [T,H] */
    moert_buffer *final_normed, *final_rstd; /* like normed and rstd of a layer */
    moert_buffer *bf16; /* [T,H] rows in bf16 for the next MoE layer or projection; NULL if the
                           dense layers use float32 */
    moert_buffer *logits, *token_loss; /* [T,V], which the loss replaces by their gradient; [T] */
    moert_model_losses losses;         /* as given to the last loss */
    double factor;
    uint64_t *counts; /* [layers,E] slots per expert of the last loss, over all ranks */

    /* scratch of backward */
    moert_buffer *d, *dn; /* [T,H] gradients of the residual and of a norm's output */
    moert_buffer *datt, *dq, *dk, *dv;
};

/* Fills the table of tensors. */
moert_status moert_model_list_tensors(moert_model *model);

/* Makes room for `floats` in *buffer. */
static inline moert_status moert_model_reserve(moert_model *model, size_t floats,
                                               moert_buffer **buffer) {
    return moert_buffer_reserve(model->device, floats * sizeof(float), buffer);
}

/* The dtype of the dense layers' operands. */
static inline moert_dtype moert_model_type(const moert_model *model) {
    return moert_operand_type(model->config.dense);
}

/* *operand = values[T,columns] as an operand of dense layers (moert_operand_take). */
static inline moert_status moert_model_operand(moert_model *model, size_t columns,
                                               const moert_buffer *values, moert_scratch which,
                                               moert_buffer **operand) {
    return moert_operand_take(model->mesh, moert_model_type(model), model->batch.tokens * columns,
                              values, which, operand);
}

/* The GEMM of a dense layer over the batch, y[T,n] = x[T,k] weight^T, without the weight. The
 * GEMM's inputs among x and y have the operands' dtype. */
static inline moert_gemm moert_model_gemm(const moert_model *model, size_t n, size_t k,
                                          const moert_buffer *x, const moert_buffer *y) {
    return (moert_gemm){.groups = {model->batch.ends, model->batch.sequences, model->batch.tokens},
                        .n = n,
                        .k = k,
                        .type = moert_model_type(model),
                        .shared_weight = true,
                        .x = (moert_buffer *)x,
                        .y = (moert_buffer *)y};
}

/* The head's GEMM with the gradient of the logits as y. In bf16, each row uses the first half of
 * the space of its float32 logits. */
static inline moert_gemm moert_model_head_gradient(const moert_model *model) {
    const size_t v = model->config.vocabulary;
    moert_gemm gemm =
        moert_model_gemm(model, v, model->config.hidden, model->final_normed, model->logits);
    gemm.ldy = gemm.type == MOERT_DTYPE_F32 ? v : 2 * v;
    return gemm;
}

/* The heads of q or k: tensors of the attention, and activations of the last forward. */
typedef struct moert_model_heads {
    size_t weight, norm, count;
    moert_buffer *raw, *rstd, *rotated;
} moert_model_heads;

/* [0]: q, [1]: k */
enum { MOERT_MODEL_ROTATED = 2 };

static inline void moert_model_heads_of(const moert_model *model, const moert_model_layer *l,
                                        moert_model_heads heads[MOERT_MODEL_ROTATED]) {
    const moert_model_config *c = &model->config;
    heads[0] = (moert_model_heads){ATTN_Q, ATTN_Q_NORM, c->heads, l->q_raw, l->q_rstd, l->q};
    heads[1] = (moert_model_heads){ATTN_K, ATTN_K_NORM, c->kv_heads, l->k_raw, l->k_rstd, l->k};
}

static inline moert_attention moert_model_attention(const moert_model *model,
                                                    const moert_model_layer *layer) {
    const moert_model_config *c = &model->config;
    return (moert_attention){.sequences = model->batch.sequences,
                             .length = model->length,
                             .heads = c->heads,
                             .kv_heads = c->kv_heads,
                             .head_size = c->head_size,
                             .scale = 1.0f / sqrtf((float)c->head_size),
                             .q = layer->q,
                             .k = layer->k,
                             .v = layer->v,
                             .out = layer->attended,
                             .lse = layer->lse,
                             .type = moert_model_type(model),
                             .scratch = &model->mesh->scratch[MOERT_SCRATCH_PARTIAL]};
}

/* *operand = attention's result as an operand: the float32 result, or the bf16 values that
 * attention also writes. */
static inline moert_status moert_model_attended(moert_model *model, moert_attention *attention,
                                                moert_buffer **operand) {
    const size_t n = model->batch.tokens * attention->heads * attention->head_size;
    MOERT_TRY(moert_operand_buffer(model->mesh, moert_model_type(model), n, MOERT_SCRATCH_ROUNDED_X,
                                   attention->out, operand));
    attention->bf16 = *operand != attention->out ? *operand : NULL;
    return MOERT_OK;
}

/* The index of the matrix that computes the logits: lm_head, or the embedding when tied. */
static inline size_t moert_model_head(const moert_model *model) {
    return model->config.tied_embeddings ? OUTER_EMBED : OUTER_HEAD;
}
