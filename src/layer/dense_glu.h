/*
 * A GLU that computes every token: the shared expert of a layer, or a dense layer of a model.
 *
 *   v = x W1^T,  h = glu(v),  y = h W2^T
 *
 * W1 [2I,H], gates before ups, is tensor `first` of a replicated block, W2 [H,I] the next one. The
 * caller keeps v and h for the backward. A recipe rounds the operands of all six GEMMs. Calls
 * enqueue and return; they are not collective.
 */
#pragma once

#include "layer/block.h"
#include "layer/sizes.h"

typedef struct moert_dense_glu {
    moert_mesh *mesh;
    moert_block *block;
    size_t first;
    size_t hidden, width;       /* H, I */
    moert_glu_form form;        /* `interleaved` is ignored */
    moert_dtype type;           /* dtype of the operands; BF16 with a recipe */
    const moert_recipe *recipe; /* rounds the operands (layer/dense_rounding.h), or NULL */
    const moert_buffer *x;      /* [T,H], float32 */
    moert_buffer *v, *h;        /* v [T,2I] in the dtype of moert_glu_between, h [T,I] in `type` */
    const moert_buffer *prob;   /* [T] factors of the rows of h, or NULL */
    moert_buffer *dprob;        /* [T] backward: the gradient of prob, or NULL */
    moert_batch batch;
    bool drop_v; /* v is not needed after the activation */
} moert_dense_glu;

/* Raises floats[] to the scratch that a GLU of these sizes needs. Width 0: no GLU. */
void moert_dense_glu_scratch(const moert_glu_sizes *sizes, size_t floats[MOERT_SCRATCHES]);

/* Computes v and h. */
moert_status moert_dense_glu_activate(const moert_dense_glu *glu);
/* Computes v, h and y[T,H], float32. */
moert_status moert_dense_glu_forward(const moert_dense_glu *glu, moert_buffer *y);
/* dx = the gradient of x, or dx += with `accumulate`; collects the gradients of the weights.
 * Overwrites v. Uses the scratch buffers HIDDEN, PARTIAL, ROUNDED_X and ROUNDED_Y. */
moert_status moert_dense_glu_backward(const moert_dense_glu *glu, const moert_buffer *dy,
                                      moert_buffer *dx, bool accumulate);
