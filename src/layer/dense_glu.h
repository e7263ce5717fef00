/*
 * A GLU that computes every token: the shared expert of a layer, or a dense layer of a model.
 *
 *   v = x W1^T,  h = glu(v),  y = h W2^T
 *
 * W1 [2I,H], gates before ups, is tensor `first` of a replicated block, W2 [H,I] the next one. The
 * caller keeps v and h for the backward. Calls enqueue and return; they are not collective.
 */
#pragma once

#include "layer/block.h"
#include "layer/operand.h"

typedef struct moert_dense_glu {
    moert_mesh *mesh;
    moert_block *block;
    size_t first;
    size_t hidden, width;     /* H, I */
    moert_glu_form form;      /* `interleaved` is ignored */
    moert_dtype type;         /* of the operands */
    const moert_buffer *prob; /* [T] multiplies each row of h, or NULL */
    moert_buffer *dprob;      /* [T] backward: its gradient, or NULL */
    moert_batch batch;
    bool drop_v; /* v is not needed after the activation */
} moert_dense_glu;

/* The sizes in floats of v and h. With device == NULL: those without bf16 results. */
size_t moert_dense_glu_v_floats(const moert_device *device, moert_dtype type, size_t tokens,
                                size_t hidden, size_t width);
size_t moert_dense_glu_h_floats(moert_dtype type, size_t tokens, size_t width);

/* v and h from x[T,H], float32. */
moert_status moert_dense_glu_activate(const moert_dense_glu *glu, const moert_buffer *x,
                                      moert_buffer *v, moert_buffer *h);
/* The same, and y[T,H], float32. */
moert_status moert_dense_glu_forward(const moert_dense_glu *glu, const moert_buffer *x,
                                     moert_buffer *v, moert_buffer *h, moert_buffer *y);
/* dx = the gradient of x, or dx += with `accumulate`; collects the gradients of the weights.
 * Overwrites v. Uses the scratch buffers HIDDEN, PARTIAL, ROUNDED_X and ROUNDED_Y. */
moert_status moert_dense_glu_backward(const moert_dense_glu *glu, const moert_buffer *x,
                                      moert_buffer *v, moert_buffer *h, const moert_buffer *dy,
                                      moert_buffer *dx, bool accumulate);
