/*
 * The dense operations of a transformer on the device: embedding, RMSNorm, rotary positions,
 * attention, cross-entropy, and the optimizer's. float32, row-major, portable OpenCL kernels
 * (kernels/common.h).
 *
 * Bits: a row's or a sequence's result depends on that row or sequence alone. Parameter gradients
 * come as one partial per sequence, partial[S,...], rows summed in order; moert_tree_reduce sums
 * the partials. T = S * length may be 0.
 */
#ifndef MOERT_OPS_DENSE_H
#define MOERT_OPS_DENSE_H

#include "base/tree.h"
#include "device/device.h"

/* ---- embedding ---- */

/* x[T,H] = table[token[t]]; token int32 [T], all below the table's rows (checked by the data
 * reader). */
moert_status moert_embedding_forward(size_t tokens, size_t hidden, const moert_buffer *table,
                                     const moert_buffer *token, moert_buffer *x);
/* partial[S,rows,H] = for table rows [first_row, first_row + rows): sum of dx[t] over the
 * sequence's tokens in order. */
moert_status moert_embedding_backward(size_t sequences, size_t length, size_t hidden,
                                      const moert_buffer *token, const moert_buffer *dx,
                                      size_t first_row, size_t rows, moert_buffer *partial);

/* ---- RMSNorm: y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + epsilon), over rows of `width`
 * ---- */

/*
 * x, y [R,width] (may be the same buffer), weight [width], rstd [R] kept for backward. Norms over
 * heads are the same with R = T * heads and width = head_size. Errors: ERROR_USAGE (width 0).
 */
moert_status moert_norm_forward(size_t rows, size_t width, float epsilon, const moert_buffer *x,
                                const moert_buffer *weight, moert_buffer *y, moert_buffer *rstd);
/*
 * dx[R,width] (+)= gradient of x; partial[S,width] = gradient of weight, R / S consecutive rows per
 * sequence. dy and dx may be the same buffer when not accumulating. Errors: ERROR_USAGE (width 0,
 * R not a multiple of S).
 */
typedef struct moert_norm_gradient {
    size_t sequences, rows, width;
    const moert_buffer *x, *weight, *rstd, *dy;
    moert_buffer *dx;
    bool accumulate;
    moert_buffer *partial;
    moert_buffer **scratch; /* growable, nothing is kept there between calls; NULL: GPUs go without,
                               more slowly, and the last bits of partial differ */
} moert_norm_gradient;
moert_status moert_norm_backward(const moert_norm_gradient *norm);

/* ---- rotary positions, rotate-half form: element i of a head pairs with i + head_size / 2 ---- */

/*
 * Makes table[length, 2, head_size/2]: cos, then sin, of t * theta^(-2i/head_size) for each
 * position t, rounded to float32 where transformers rounds; blocks. The caller owns the table,
 * which serves all layers and any shorter length. Errors: ERROR_USAGE (head_size odd or 0, theta
 * not positive), ERROR_MEMORY, ERROR_DEVICE.
 */
moert_status moert_rope_table_create(moert_device *device, size_t length, size_t head_size,
                                     float theta, moert_buffer **table);
/*
 * Rotates x[T,heads,head_size] in place, token t by position t mod length; `inverse` rotates back,
 * which is the backward. Errors: ERROR_USAGE (head_size odd or 0, table shorter than the length).
 */
moert_status moert_rope(size_t tokens, size_t length, size_t heads, size_t head_size,
                        const moert_buffer *table, bool inverse, moert_buffer *x);

/* ---- causal attention, head h of q uses head h * kv_heads / heads of k and v ---- */

/*
 * The forward reads q, k, v and writes out, lse; the backward reads q, k, v, out, lse, dout and
 * overwrites dq, dk, dv, which must not be its inputs. 2 and 7 products of 2 * S * heads *
 * head_size * length * (length + 1) / 2 FLOPs. Any length; head_size 1 to 512. Errors: ERROR_USAGE
 * (heads not a multiple of kv_heads), ERROR_UNSUPPORTED (head_size).
 */
typedef struct moert_attention {
    size_t sequences, length, heads, kv_heads, head_size;
    float scale;                   /* 1 / sqrt(head_size) */
    const moert_buffer *q, *k, *v; /* [T,heads,head_size], [T,kv_heads,head_size] twice */
    moert_buffer *out;             /* [T,heads,head_size] */
    moert_buffer *lse; /* [T,heads] log-sum-exp of the scaled scores, kept for backward */
    const moert_buffer *dout;
    moert_buffer *dq, *dk, *dv;
} moert_attention;
moert_status moert_attention_forward(const moert_attention *attention);
moert_status moert_attention_backward(const moert_attention *attention);

/* ---- cross-entropy ---- */

/*
 * loss[t] = -log softmax(logits[t])[target[t]]; then logits[T,V] becomes (softmax - onehot) *
 * factor in place when factor is not 0 (factor = 1 / tokens of the global batch). A target of -1 is
 * ignored: loss and gradient 0.
 */
moert_status moert_cross_entropy(size_t tokens, size_t vocabulary, const moert_buffer *target,
                                 float factor, moert_buffer *logits, moert_buffer *loss);

/* ---- elementwise ---- */

/* y[n] += x[n] */
moert_status moert_add(size_t n, const moert_buffer *x, moert_buffer *y);

/* ---- sums ---- */

/*
 * Local part of the tree over sequences: partial[span.count, n] is reduced to this
 * span's nodes; node i is written to target[i * target_stride + target_offset ...+ n] (floats), or
 * added to it when `accumulate`.
 */
typedef struct moert_tree_reduction {
    moert_span span;
    size_t n;
    const moert_buffer *partial;
    moert_buffer *target;
    size_t target_stride, target_offset;
    bool accumulate;
} moert_tree_reduction;
moert_status moert_tree_reduce(const moert_tree_reduction *reduction);

/*
 * Sum of squares of each of `count` tensors of one buffer: tensor i is [offset[i], offset[i] +
 * length[i]) floats; sums in blocks of fixed size from the tensor's start, so the result does not
 * depend on where the tensor lies. Blocks until done.
 */
moert_status moert_sum_squares(const moert_buffer *buffer, size_t count, const size_t *offset,
                               const size_t *length, double *sum);

/* ---- AdamW (decoupled weight decay), in place over n floats; padding must be zero ---- */
typedef struct moert_adamw {
    double rate, beta1, beta2, epsilon, decay;
    double scale;  /* multiplies the gradient first (clipping) */
    uint64_t step; /* counts from 1 */
} moert_adamw;
moert_status moert_adamw_step(const moert_adamw *adamw, size_t n, moert_buffer *parameter,
                              const moert_buffer *gradient, moert_buffer *first_moment,
                              moert_buffer *second_moment);

#endif
