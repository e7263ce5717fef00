/*
 * Sublayers. A layer of the model consists of two sublayers, attention and an MLP:
 *
 *   middle = x + scale * norm(attention(norm(x)))
 *   out    = middle + scale * norm(mlp(norm(middle)))
 *
 * A model has some of these norms (moert_norm_place), usually the inner ones. sublayer.c computes
 * the norms and the residual, with the functions of project.c. Each variant of a sublayer is one
 * file that implements an interface below: gqa.c and mla.c for attention, mlp_moe.c and mlp_dense.c
 * for the MLP. Attention keeps the activations of its backward in layer->activations->kept[], and
 * the backward uses scratch in run->scratch[]. `describe` gives the sizes of kept[] and scratch[].
 */
#pragma once

#include "model/internal.h"

typedef struct moert_attention_variant {
    /* Fills in the shape, which the caller has zeroed: parameters and buffers for a config on
     * `device`, or on a device without tensor cores if `device` is NULL. */
    void (*describe)(const moert_model_config *config, const moert_device *device,
                     moert_attention_shape *shape);
    /* y[T,H] = attention of layer->activations->normed [T,H], a GEMM operand. */
    moert_status (*forward)(moert_run *run, moert_run_layer *layer, moert_buffer *y);
    /* dx[T,H] = gradient of layer->activations->normed, from dy [T,H], a GEMM operand. Also
     * computes the gradients of the variant's parameters. */
    moert_status (*backward)(moert_run *run, moert_run_layer *layer, moert_buffer *dy,
                             moert_buffer *dx);
} moert_attention_variant;

extern const moert_attention_variant moert_model_gqa; /* grouped-query heads */
extern const moert_attention_variant moert_model_mla; /* multi-head latent attention */

/* A gradient [T,H] in float32, and in bf16 if the dense layers use bf16, else NULL. */
typedef struct moert_model_gradient {
    moert_buffer *d, *bf16;
} moert_model_gradient;

/* A variant of the MLP, the second sublayer of a layer. */
typedef struct moert_mlp_variant {
    moert_status (*create)(moert_model *model, moert_model_layer *layer); /* collective */
    /* `destroy` is legal also before `create`, or after `create` has failed */
    void (*destroy)(moert_model_layer *layer);
    /* y[T,H] = the MLP of layer->activations->post_normed[T,H]. Collective. */
    moert_status (*forward)(moert_run *run, moert_run_layer *layer, moert_buffer *y);
    /* run->dn[T,H] = gradient of layer->activations->post_normed, from the result's gradient dy.
     * Also computes the gradients of the MLP's parameters or, with `accumulate`, adds to them.
     * Collective. */
    moert_status (*backward)(moert_run *run, moert_run_layer *layer, const moert_model_gradient *dy,
                             bool accumulate);
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

/* The variant of attention that a config has. */
const moert_attention_variant *moert_model_attention_of(const moert_model_config *config);

/* ---- sublayers ---- */

/* The residual that layer `layer` reads. */
static inline const moert_buffer *moert_model_input(const moert_run *run, size_t layer) {
    return layer > 0 ? run->layer[layer - 1].out : run->embedded;
}

/* Creates a block of a kind, except for the kinds of blocks of a MoE layer. Not collective. */
moert_status moert_model_create_block(moert_model *model, size_t kind, moert_block **block);

/* Reserves the buffers for a layer's activations of the batch. */
moert_status moert_model_reserve_layer(moert_run *run, moert_run_layer *layer);
/* Runs the forward of both sublayers of layer `index`. Collective. */
moert_status moert_model_run_layer(moert_run *run, size_t index);

moert_status moert_model_attention_forward(moert_run *run, moert_run_layer *layer,
                                           const moert_buffer *x);
moert_status moert_model_mlp_forward(moert_run *run, moert_run_layer *layer);
/* Replaces run->d [T,H], the gradient of the sublayer's result, by the gradient of the sublayer's
 * input. */
moert_status moert_model_mlp_backward(moert_run *run, moert_run_layer *layer, bool accumulate);
moert_status moert_model_attention_backward(moert_run *run, moert_run_layer *layer,
                                            const moert_buffer *x);

/* ---- projections and norms (project.c) ---- */

/*
 * Projections by parameter `index` of the layer's attention, a matrix [n,k]. If parameter index + 1
 * has is_bias, it is the projection's bias.
 */
/* y[T,n] = x[T,k] weight^T + bias; x is an operand. */
moert_status moert_model_project(moert_run *run, moert_run_layer *layer, size_t index,
                                 const moert_buffer *x, moert_buffer *y);
/* The destination of a projection's result or gradient: `rows`, of `type` F32 or BF16. With BF16,
 * `floats` is float32 scratch of the same shape, for GEMMs that cannot round their result. */
typedef struct moert_model_target {
    moert_dtype type;
    moert_buffer *rows, *floats;
} moert_model_target;
moert_status moert_model_project_to(moert_run *run, moert_run_layer *layer, size_t index,
                                    const moert_buffer *x, const moert_model_target *y);
/* dx[T,k] = dy[T,n] weight or, with `accumulate`, dx += dy weight. dy is a GEMM operand. */
moert_status moert_model_input_backward(moert_run *run, moert_run_layer *layer, size_t index,
                                        const moert_buffer *dy, moert_buffer *dx, bool accumulate);
moert_status moert_model_input_backward_to(moert_run *run, moert_run_layer *layer, size_t index,
                                           const moert_buffer *dy, const moert_model_target *dx);
/* Computes the gradients of weight and bias. x and dy are GEMM operands. */
moert_status moert_model_weight_backward(moert_run *run, moert_run_layer *layer, size_t index,
                                         const moert_buffer *x, const moert_buffer *dy);

/* *operand = the result of attention as a GEMM operand of dense layers: `out`, or the bf16 copy of
 * `out` that attention also writes. */
moert_status moert_model_attention_operand(moert_run *run, moert_attention *attention,
                                           moert_buffer **operand);

/* normed[T,H] = norm(x), as a GEMM operand. Tensor `index` of `block` is the norm's weight. */
moert_status moert_model_normalise(moert_run *run, const moert_block *block, size_t index,
                                   const moert_buffer *x, moert_buffer *normed, moert_buffer *rstd);
/* Backward of a norm. Also computes the gradient of the norm's weight, tensor `index` of `block`.
 * The caller fills in rows, buffers and options in `own`. */
moert_status moert_model_norm_backward(moert_run *run, moert_block *block, size_t index,
                                       const moert_norm_gradient *own);
/* Backward of a norm of [T,H] from dn. d = the input's gradient or, with `accumulate`, d += the
 * input's gradient. */
moert_status moert_model_normalise_backward(moert_run *run, moert_block *block, size_t index,
                                            const moert_buffer *x, const moert_buffer *rstd,
                                            bool accumulate);
