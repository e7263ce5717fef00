/*
 * Sublayers. A block of the model is two of them, attention and an MLP:
 *
 *   middle = x + attention(norm(x))
 *   out    = middle + mlp(norm(middle))
 *
 * sublayer.c computes the norms and the residual, with the functions of project.c. A variant is one
 * file behind an interface below: gqa.c and mla.c of attention, mlp_moe.c and mlp_dense.c of the
 * MLP. Attention keeps what its backward needs in layer->activations->kept[], and differentiates in
 * run->scratch[]; both have the sizes that it describes.
 */
#pragma once

#include "model/internal.h"

typedef struct moert_attention_variant {
    /* Fills in the shape, which the caller has zeroed: parameters and buffers for a config on a
     * device. device NULL: a device without tensor cores. */
    void (*describe)(const moert_model_config *config, const moert_device *device,
                     moert_attention_shape *shape);
    /* y[T,H] = attention of layer->activations->normed [T,H], an operand. */
    moert_status (*forward)(moert_run *run, moert_run_layer *layer, moert_buffer *y);
    /* dx[T,H] = gradient of layer->activations->normed, from dy [T,H], an operand. Collects the
     * gradients of the variant's parameters. */
    moert_status (*backward)(moert_run *run, moert_run_layer *layer, moert_buffer *dy,
                             moert_buffer *dx);
} moert_attention_variant;

extern const moert_attention_variant moert_model_gqa; /* grouped-query heads */
extern const moert_attention_variant moert_model_mla; /* multi-head latent attention */

/* A variant of the MLP, the second sublayer of a block. */
typedef struct moert_mlp_variant {
    moert_status (*create)(moert_model *model, moert_model_layer *layer); /* collective */
    void (*destroy)(moert_model_layer *layer); /* legal also after a failed create, or before
                                                  create */
    /* layer->out[T,H] = the MLP of layer->activations->post_normed[T,H]; collective. */
    moert_status (*forward)(moert_run *run, moert_run_layer *layer);
    /* run->dn[T,H] = gradient of layer->activations->post_normed, from run->d. Collects or,
     * with `accumulate`, adds the gradients of its parameters. Collective. */
    moert_status (*backward)(moert_run *run, moert_run_layer *layer, bool accumulate);
    /* The layer's MLP blocks, in order; NULL past the end. */
    moert_block *(*block)(const moert_model_layer *layer, size_t index);
    /* Sum the MLP's gradients over the ranks (moert_layer_reduce_start, ...). */
    moert_status (*reduce_start)(moert_model *model, moert_model_layer *layer, bool last);
    moert_status (*reduce_progress)(moert_model_layer *layer);
    moert_status (*reduce_wait)(moert_model_layer *layer);
    void (*weights_changed)(moert_model_layer *layer);
} moert_mlp_variant;

extern const moert_mlp_variant moert_model_moe;   /* a MoE layer */
extern const moert_mlp_variant moert_model_dense; /* a dense GLU */

const moert_mlp_variant *moert_model_mlp_of(const moert_model_layer *layer);

/* The variant of a config. */
const moert_attention_variant *moert_model_attention_of(const moert_model_config *config);

/* ---- sublayers ---- */

/* The residual that a layer reads. */
static inline const moert_buffer *moert_model_input(const moert_run *run, size_t layer) {
    return layer > 0 ? run->layer[layer - 1].out : run->embedded;
}

/* Creates a replicated block of a kind, but not of a MoE layer. Not collective. */
moert_status moert_model_create_block(moert_model *model, size_t kind, moert_block **block);

/* Makes room for a layer's activations of the batch. */
moert_status moert_model_reserve_layer(moert_run *run, moert_run_layer *layer);
/* Runs both sublayers of a layer forward. Collective. */
moert_status moert_model_run_layer(moert_run *run, size_t index);

moert_status moert_model_attention_forward(moert_run *run, moert_run_layer *layer,
                                           const moert_buffer *x);
moert_status moert_model_mlp_forward(moert_run *run, moert_run_layer *layer);
/* run->d [T,H], the gradient of the sublayer's result, becomes the gradient of its input. */
moert_status moert_model_mlp_backward(moert_run *run, moert_run_layer *layer, bool accumulate);
moert_status moert_model_attention_backward(moert_run *run, moert_run_layer *layer,
                                            const moert_buffer *x);

/* ---- projections and norms (project.c) ---- */

/*
 * Projections by parameter `index` of the layer's attention, a matrix [n,k]. If parameter
 * index + 1 `is_bias`, it belongs to the projection.
 */
/* y[T,n] = x[T,k] weight^T + bias; x is an operand. */
moert_status moert_model_project(moert_run *run, moert_run_layer *layer, size_t index,
                                 const moert_buffer *x, moert_buffer *y);
/* The destination of a projection's result or gradient: `rows`, of `type` F32 or BF16. With BF16,
 * `floats` is float32 scratch of the same size, for GEMMs that cannot round. */
typedef struct moert_model_target {
    moert_dtype type;
    moert_buffer *rows, *floats;
} moert_model_target;
moert_status moert_model_project_to(moert_run *run, moert_run_layer *layer, size_t index,
                                    const moert_buffer *x, const moert_model_target *y);
/* dx[T,k] = dy[T,n] weight, or dx += with `accumulate`; dy is an operand. */
moert_status moert_model_input_backward(moert_run *run, moert_run_layer *layer, size_t index,
                                        const moert_buffer *dy, moert_buffer *dx, bool accumulate);
moert_status moert_model_input_backward_to(moert_run *run, moert_run_layer *layer, size_t index,
                                           const moert_buffer *dy, const moert_model_target *dx);
/* Collects the gradients of weight and bias; x and dy are operands. */
moert_status moert_model_weight_backward(moert_run *run, moert_run_layer *layer, size_t index,
                                         const moert_buffer *x, const moert_buffer *dy);

/* *operand = the result of attention as an operand of dense layers: `out`, or a bf16 copy that
 * attention writes as well. */
moert_status moert_model_attention_operand(moert_run *run, moert_attention *attention,
                                           moert_buffer **operand);

/* normed[T,H] = norm(x) as an operand; tensor `index` of `block` is the norm's weight. */
moert_status moert_model_normalise(moert_run *run, const moert_block *block, size_t index,
                                   const moert_buffer *x, moert_buffer *normed, moert_buffer *rstd);
/* Backward of a norm, and the gradient of its weight, tensor `index` of `block`. The caller fills
 * in the rows, buffers and options in `own`. */
moert_status moert_model_norm_backward(moert_run *run, moert_block *block, size_t index,
                                       const moert_norm_gradient *own);
/* Backward of a norm of [T,H]: d = the gradient from dn, or d += with `accumulate`. */
moert_status moert_model_normalise_backward(moert_run *run, moert_block *block, size_t index,
                                            const moert_buffer *x, const moert_buffer *rstd,
                                            bool accumulate);
