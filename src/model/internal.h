/* The model's struct and functions that its files share. */
#pragma once

#include <math.h>

#include "attention/attention.h"
#include "device/buffer.h"
#include "layer/choices.h"
#include "layer/operand.h"
#include "model/model.h"
#include "moert/quantize.h"
#include "nn/nn.h"

/*
 * Tensors of the replicated block of a layer: the norm before attention, the parameters of
 * attention from MOERT_ATTENTION_FIRST on, then the norms of attention's result, before the MLP,
 * and of the MLP's result (moert_model_norm_at). For a norm that the layer does not have, there is
 * a tensor without elements.
 */
enum { MOERT_ATTENTION_NORM, MOERT_ATTENTION_FIRST, MOERT_ATTENTION_MOST = 20 };
enum { MOERT_ATTENTION_TENSORS = MOERT_ATTENTION_MOST + MOERT_NORMS };
enum { OUTER_EMBED, OUTER_NORM, OUTER_HEAD, OUTER_TENSORS };

/* A tensor of the model's files, [rows, columns], or [rows] if columns is 0. */
typedef struct moert_model_parameter {
    const char *suffix; /* the name after "model.layers.N." */
    size_t rows, columns;
    moert_initial initial;
    bool is_bias;  /* this is the bias of the preceding parameter */
    bool is_fixed; /* the model keeps the tensor as it is, and does not compute with it */
} moert_model_parameter;

/* A buffer [T,width]. */
typedef struct moert_model_rows {
    size_t width; /* 0: not used */
    moert_dtype type;
} moert_model_rows;

/* Parameters and buffers of an attention variant, for a config (model/sublayer.h). */
typedef struct moert_attention_shape {
    moert_model_parameter parameter[MOERT_ATTENTION_MOST]; /* absent ones have 0 rows */
    size_t parameters;
    moert_model_rows kept[MOERT_ATTENTION_MOST];    /* activations that each layer keeps */
    moert_model_rows scratch[MOERT_ATTENTION_MOST]; /* buffers of the backward, shared by all
                                                       layers */
    struct {
        size_t rows, width; /* rows per token; width of a row */
    } norm[2];              /* norms inside attention; rows 0: no norm */
    /* largest widths of operands that are rounded to bf16 in the mesh's scratch: x (inputs of
     * projections) and y (gradients of the projections' results) */
    size_t rounded_x, rounded_y;
} moert_attention_shape;

/* The shape of a config's attention on `device`; NULL: on a device without tensor cores. */
moert_attention_shape moert_attention_shape_of(const moert_model_config *config,
                                               const moert_device *device);

/*
 * The kinds of blocks of a model, and their shapes on a rank: outside of the layers, attention and
 * norms, those of dense layers if their norms differ, a dense layer's MLP, and a MoE layer with
 * `local` experts on the rank.
 */
enum {
    MOERT_MODEL_OUTER,
    MOERT_MODEL_ATTENTION,
    MOERT_MODEL_DENSE_ATTENTION,
    MOERT_MODEL_DENSE,
    MOERT_MODEL_MOE
};
enum { MOERT_MODEL_SHAPES = MOERT_MODEL_MOE + MOERT_LAYER_BLOCKS };
typedef struct moert_model_shapes {
    moert_block_shape of[MOERT_MODEL_SHAPES]; /* shapes, which point to the arrays below */
    size_t outer[OUTER_TENSORS], attention[2][MOERT_ATTENTION_TENSORS], dense[2];
    moert_layer_shapes layer;
} moert_model_shapes;
extern const char *const moert_model_block_names[MOERT_MODEL_SHAPES];
void moert_model_list_shapes(const moert_model_config *config,
                             const moert_attention_shape *attention, size_t local,
                             moert_model_shapes *shapes);
/* The kind of the block of layer `layer` with attention and norms; the number of layers with a
 * block of this kind. */
size_t moert_model_attention_kind(const moert_model_config *config, size_t layer);
size_t moert_model_attention_count(const moert_model_config *config, size_t kind);
/* The index of a norm in a layer's block with attention and norms. */
size_t moert_model_norm_at(const moert_block *block, moert_norm_place place);

/* The activations of a layer that its backward reads; T rows each. */
typedef struct moert_model_activations {
    /* [T,H] result of the first norm, in the operands' dtype (layer/operand.h); [T] rstd of this
     * norm */
    moert_buffer *normed, *rstd;
    moert_buffer *kept[MOERT_ATTENTION_MOST]; /* activations of attention, as in
                                                 moert_attention_shape */
    moert_buffer *middle;                     /* [T,H] residual after attention */
    /* results of the sublayers, if the model has norms of them, and rstd of these norms */
    moert_buffer *attended, *attended_rstd, *mlp_out, *mlp_out_rstd;
    moert_buffer *post_normed, *post_rstd; /* input of the MLP, and its norm's rstd */
    moert_buffer *mlp_v, *mlp_h;           /* dense layers: v and h of the GLU
                                                 (layer/dense_glu.h) */
} moert_model_activations;

/* The weights of a layer. */
typedef struct moert_model_layer {
    size_t index;
    moert_block *attention; /* norms and attention */
    bool is_dense;          /* the MLP is a dense GLU, otherwise a MoE layer */
    moert_block *mlp;       /* the dense GLU's W1 and W2 */
    moert_layer *moe;
    size_t moe_index; /* index among the MoE layers */
} moert_model_layer;

/* A layer in a run. */
typedef struct moert_run_layer {
    moert_model_layer *of;
    moert_pass *pass;           /* pass of the last forward; NULL: discarded */
    moert_buffer *aux_gradient; /* [E] gradient of the last auxiliary loss, or [sequences, E] */
    /* the layer's own activations, or activations that all layers share (moert_recompute) */
    moert_model_activations *activations;
    moert_buffer *out; /* [T,H] residual after the MLP */
    /* k and v of all tokens so far, with room for `cache_room` tokens of each sequence (cache.c) */
    moert_buffer *cache[2];
    size_t cache_room;
} moert_run_layer;

/* Buffers of head.c for chunks of tokens. */
typedef struct moert_head_buffers {
    moert_buffer *x, *dx, *target, *loss; /* buffers of one chunk */
    moert_buffer *end[2];                 /* end[i]: uint32 [1] with the value end_rows[i] */
    size_t end_rows[2];
    moert_gemm forward; /* forward GEMM of the head; its rows are set for each chunk */
    moert_buffer *sum[MOERT_TREE_MAX_NODES]; /* [V,H] sums over sequences */
} moert_head_buffers;

/* Weights and configuration. */
struct moert_model {
    moert_mesh *mesh;
    moert_device *device;
    moert_model_config config;
    moert_attention_shape attention;
    moert_block *outer;
    moert_model_layer *layer; /* [layers] */
    moert_model_layer **moe;  /* [moe_layers] the MoE layers of `layer` */
    size_t moe_layers;
    moert_block **block; /* [blocks] all blocks, in a fixed order */
    size_t blocks;
    moert_model_tensor *tensor;
    size_t tensor_count, file_tensor_count;
    /* buffers for float32 gradients; used if the layers keep bf16 gradients */
    moert_gradient_pool *gradient_pool;
    /* rotations of positions below rope_length, of config.rope and config.window_rope */
    moert_buffer *rope[MOERT_ROPES];
    size_t rope_length;
};

/* The state of a batch in a model, with the activations that its forward keeps for its backward. */
struct moert_run {
    moert_model *model;
    moert_mesh *mesh; /* mesh, device and config of the model */
    moert_device *device;
    const moert_model_config *config;
    moert_block *outer;     /* the model's block outside of the layers, or a copy of this block */
    moert_run_layer *layer; /* [layers] */
    size_t layers;
    moert_run_layer **moe;                /* [moe_layers] */
    moert_model_activations *activations; /* activations [layers], or [1] if all layers share one
                                             set */
    size_t activation_count;

    /* the last batch */
    /* the caller's batch; after the backward its token arrays may be freed */
    moert_model_batch given;
    moert_batch batch;
    size_t length;
    moert_documents *documents; /* documents of the batch, if `packed` */
    size_t room;                /* tokens of each sequence in the cache; 0: no cache */
    bool packed; /* `documents` are set: a sequence holds several, or continues one */
    moert_buffer *ends, *tokens, *targets;
    moert_buffer *links;    /* [T,2], see moert_embedding_links; untied head only */
    moert_buffer *embedded; /* [T,H] */
    /* [T,H] result of the last norm, in the operands' dtype; [T] rstd of this norm */
    moert_buffer *final_normed, *final_rstd;
    moert_buffer *bf16;   /* [T,H] rows in bf16 for the next MoE layer or projection; NULL if the
                             dense layers use float32 */
    moert_buffer *d_bf16; /* [T,H] gradient `d` in bf16, if layers are recomputed; NULL: `bf16` is
                             used instead */
    /* the forward of the present layer discards its activations, since the backward recomputes them
     * (moert_recompute) */
    bool discards;
    moert_buffer *token_loss;  /* [T] */
    moert_buffer *loss_inputs; /* inputs of the MoE layers' losses (losses.c) */
    struct moert_audit *audit; /* the audit in progress (audit.h), or NULL */
    bool watched;              /* loss_inputs include the routers' entropies (watch.h) */
    moert_buffer *logits;      /* [chunk,V] logits; the loss overwrites them by their gradient */
    size_t logits_first, logits_rows; /* the tokens whose logits are in `logits` */
    moert_head_buffers head;
    moert_model_losses losses; /* options of the last loss */
    double factor;
    float slope;     /* derivative of the loss by a token's cross-entropy; 0: no backward
                             follows */
    bool accumulate; /* the batch is not the first micro-batch of a step */
    size_t counted;  /* moert_model_batch.targets */
    double rows;     /* tokens of the last loss without padding, over all ranks */
    /* [moe_layers,E] slots per expert in the last forward, of the EP group's tokens */
    uint64_t *own_counts;
    /* [moe_layers,E] slots per expert in the batch of the last loss, over all ranks */
    uint64_t *counts;
    /* [moe_layers,nodes,E] own_counts split by the node of the tokens; NULL if the EP group is on
     * one node */
    uint64_t *node_counts;

    /* scratch of backward */
    moert_buffer *d, *dn; /* [T,H] gradients of the residual and of a norm's output */
    /* [T,H] gradient of a sublayer's result, also in bf16, if it differs from `d`
     * (moert_model_has_branch) */
    moert_buffer *branch, *branch_bf16;
    /* gradient of the embeddings of tokens before they are scaled: `d` or, if the config scales
     * embeddings, `dn` */
    const moert_buffer *d_embedded;
    /* buffers of attention's backward, as in moert_attention_shape */
    moert_buffer *scratch[MOERT_ATTENTION_MOST];
};

static inline float moert_or_one(float factor) {
    return factor != 0.0f ? factor : 1.0f;
}

/* Whether the gradient of a sublayer's result differs from that of the residual: the result passes
 * a norm or is scaled. */
static inline bool moert_model_has_branch(const moert_model_config *c) {
    const size_t sparse = c->layers - 1; /* the last layer has all norms of a config */
    return moert_or_one(c->residual_scale) != 1.0f ||
           moert_norm_name(c, sparse, MOERT_NORM_ATTENTION_RESULT) != NULL ||
           moert_norm_name(c, sparse, MOERT_NORM_MLP_RESULT) != NULL;
}

/* run->d in bf16, or NULL. */
static inline moert_buffer *moert_run_d_bf16(const moert_run *run) {
    return run->d_bf16 != NULL ? run->d_bf16 : run->bf16;
}

/* A run of `count` layers, which may be others than the model's layers. Not collective. */
moert_status moert_run_create_of(moert_model *model, moert_model_layer *layers, size_t count,
                                 moert_run **run);

/* Fills in the model's table of tensors. */
moert_status moert_model_list_tensors(moert_model *model);

/* Reserves `floats` floats in *buffer. */
static inline moert_status moert_model_reserve(moert_model *model, size_t floats,
                                               moert_buffer **buffer) {
    return moert_buffer_reserve(model->device, floats * sizeof(float), buffer);
}

/* The dtype of the dense layers' operands. */
static inline moert_dtype moert_model_type(const moert_model *model) {
    return moert_operand_type(model->config.dense);
}

/* Whether a recipe rounds the operands of the projections of attention in layer `layer` (project.c;
 * not in batches in bf16). */
bool moert_model_rounds_attention(const moert_model_config *config, size_t layer);

/* *operand = values[T,columns] as a GEMM operand of dense layers (moert_operand_take). */
static inline moert_status moert_model_operand(moert_run *run, size_t columns,
                                               const moert_buffer *values, moert_scratch which,
                                               moert_buffer **operand) {
    return moert_operand_take(run->mesh, moert_model_type(run->model), run->batch.tokens * columns,
                              values, which, operand);
}

/* bf16[T,columns] = floats, rounded to bf16. */
static inline moert_status moert_model_round(const moert_run *run, size_t columns,
                                             const moert_buffer *floats, moert_buffer *bf16) {
    return moert_cast_run(&(moert_cast){sizeof(moert_cast), MOERT_DTYPE_F32, MOERT_DTYPE_BF16,
                                        run->batch.tokens * columns, floats, bf16});
}

/* Describes the GEMM of a dense layer over the batch, with matrices x[T,k] and y[T,n]. The caller
 * adds the weight. */
static inline moert_gemm moert_model_gemm(const moert_run *run, moert_gemm_kind kind, size_t n,
                                          size_t k, const moert_buffer *x, const moert_buffer *y) {
    moert_gemm gemm = {
        .groups = {run->batch.ends, run->batch.sequences, run->batch.tokens, .shared = true},
        .n = n,
        .k = k,
        .x.buffer = (moert_buffer *)x,
        .y.buffer = (moert_buffer *)y};
    moert_gemm_set(&gemm, kind, moert_model_type(run->model));
    return gemm;
}

/* The documents of the batch, for attention and for positions of rotations. NULL: each sequence is
 * one document. */
static inline moert_documents *moert_model_documents(const moert_run *run) {
    return run->packed ? run->documents : NULL;
}
static inline const moert_buffer *moert_model_positions(const moert_run *run) {
    return run->packed ? moert_documents_positions(run->documents) : NULL;
}

/* Reserves a buffer for each used entry of rows[MOERT_ATTENTION_MOST]. */
static inline moert_status moert_model_reserve_rows(moert_run *run, const moert_model_rows *rows,
                                                    moert_buffer **buffers) {
    for (size_t i = 0; i < MOERT_ATTENTION_MOST; i++)
        if (rows[i].width > 0)
            MOERT_TRY(moert_model_reserve(
                run->model, moert_operand_floats(rows[i].type, run->batch.tokens * rows[i].width),
                &buffers[i]));
    return MOERT_OK;
}

/* If the run has a cache, copies the batch's k and v to the layer's cache, and lets attention read
 * the cache. */
moert_status moert_model_cache_keys(moert_run *run, moert_run_layer *layer,
                                    moert_attention *attention);
/* Uploads this rank's tokens, the targets unless they are NULL, and the links between equal
 * tokens. */
moert_status moert_model_upload_tokens(moert_run *run, const int32_t *token, const int32_t *target);
/* run->embedded = the embeddings of the tokens. */
moert_status moert_model_embed(moert_run *run);
/* Computes the gradient of the embedding from run->d. */
moert_status moert_model_embed_backward(moert_run *run);
/* Computes the losses of all tokens. Unless run->slope is 0, also computes dn[T,H], the gradient of
 * final_normed, and the gradient of an untied head. */
moert_status moert_head_loss(moert_run *run);
/* Computes the gradient of a tied embedding, from run->d and the gradient of the head. */
moert_status moert_head_collect_tied(moert_run *run);
/* The most rows of logits that are in memory at once, on a rank with `tokens` tokens in sequences
 * of `length`. */
size_t moert_head_rows(const moert_model_config *config, size_t tokens, size_t length);

/* Whether each sequence has its own auxiliary loss. */
static inline bool moert_balances_sequences(const moert_run *run) {
    return run->losses.aux_form == MOERT_AUX_SEQUENCE;
}

/* Whether the backward recomputes activations of layers. */
static inline bool moert_model_recomputes(const moert_model *model) {
    return model->config.memory.recompute == MOERT_RECOMPUTE_LAYER;
}

/* Ends the layer's pass, if it has one. The next pass reuses the memory. */
static inline void moert_model_discard(moert_run_layer *layer) {
    moert_pass_destroy(layer->pass);
    layer->pass = NULL;
}

/* After a MoE layer's forward, stores the experts' loads. If the layer's pass will be discarded,
 * also copies the losses' inputs from it. */
moert_status moert_model_take_loads(moert_run *run, const moert_run_layer *layer);
/* Copies the losses' inputs from a MoE layer's pass to run->loss_inputs, after a loss. */
moert_status moert_model_take_loss_inputs(moert_run *run, const moert_run_layer *layer);
/* The offset in floats of the entropies [moe_layers,T] in run->loss_inputs, after a loss. */
size_t moert_model_entropies_at(const moert_run *run);

/* sum[n] = mine[sequences, n] summed over the sequences of all ranks, in the order of the
 * sequences. Collective. */
moert_status moert_model_sum_sequences(const moert_run *run, const double *mine, size_t n,
                                       double *sum);

/* The index of the matrix that computes the logits: lm_head, or the embedding if both are tied. */
static inline size_t moert_model_head(const moert_model *model) {
    return model->config.tied_embeddings ? OUTER_EMBED : OUTER_HEAD;
}
