/*
 * The dense operations of a transformer on the device, but for GEMMs and attention: embedding,
 * RMSNorm, rotary positions, cross-entropy, and the optimizer's. float32, row-major, portable
 * OpenCL kernels (kernels/lib/common.h) unless said otherwise.
 *
 * Bits: a row's or a sequence's result depends on that row or sequence alone. Parameter gradients
 * come as one partial per sequence, partial[S,...], rows summed in order; moert_tree_reduce sums
 * the partials. T = S * length may be 0.
 */
#pragma once

#include "base/tree.h"
#include "device/device.h"
#include "moert/formats.h"

/* Where the sums over the sequences of a span go: those of its i-th tree node to
 * target[i * stride + offset ...] (floats), or added to what is there. */
typedef struct moert_tree_nodes_at {
    moert_span span;
    moert_buffer *target;
    size_t stride, offset;
    bool accumulate;
} moert_tree_nodes_at;

/* ---- embedding ---- */

/* x[T,H] = table[token[t]]; token int32 [T], all below the table's rows (checked by the data
 * reader). */
moert_status moert_embedding_forward(size_t tokens, size_t hidden, const moert_buffer *table,
                                     const moert_buffer *token, moert_buffer *x);
/* partial[S,rows,H] = for table rows [first_row, first_row + rows): sum of dx[t] over the
 * sequence's tokens in order. */
typedef struct moert_embedding_part {
    size_t sequences, length, hidden, first_row, rows;
    const moert_buffer *token, *dx;
    moert_buffer *partial;
} moert_embedding_part;
moert_status moert_embedding_backward(const moert_embedding_part *part);
/*
 * The same for all `rows` of the table, straight to the nodes of the tree: what moert_tree_reduce
 * makes of such partials, bit for bit, without them. link[T,2] is made by moert_embedding_links
 * from the tokens, on the host.
 */
typedef struct moert_embedding_sum {
    size_t length, hidden, rows;
    const moert_buffer *token, *link, *dx;
    moert_tree_nodes_at at;
} moert_embedding_sum;
moert_status moert_embedding_gradient(const moert_embedding_sum *sum);
/* Errors: ERROR_MEMORY, ERROR_UNSUPPORTED (2^31 tokens or more). */
moert_status moert_embedding_links(moert_span span, size_t length, size_t rows,
                                   const int32_t *token, int32_t *link);

/* ---- RMSNorm: y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + epsilon), over rows of `width`
 * ---- */

/* Rows that are heads, so many of a token in sequences of `length`, rotated by the table (see
 * below); a table of NULL: they are not. */
typedef struct moert_rotation {
    const moert_buffer *table;
    size_t heads, length;
} moert_rotation;

/*
 * x, y [R,width] (may be the same buffer), weight [width], rstd [R] kept for backward; y is also
 * or, when y is NULL, only given as bf16 codes: the values that a cast would give. Norms over heads
 * are the same with R = T * heads and width = head_size, and y may be rotated then. Errors:
 * ERROR_USAGE (width 0, no results, R no multiple of heads, those of moert_rope),
 * ERROR_UNSUPPORTED (rotated codes).
 */
typedef struct moert_norm {
    size_t rows, width;
    float epsilon;
    const moert_buffer *x, *weight;
    moert_buffer *y, *codes; /* [R,width], or NULL */
    moert_buffer *rstd;
    moert_rotation rotation;
} moert_norm;
moert_status moert_norm_run(const moert_norm *norm);
/*
 * dx[R,width] (+)= gradient of x; partial[S,width] = gradient of weight, R / S consecutive rows per
 * sequence. dy and dx may be the same buffer when not accumulating. dx also or, when it is NULL,
 * only as codes; dy of rotated rows is rotated back first, maybe in place. Errors: ERROR_USAGE
 * (width 0, R not a multiple of S, codes alone that accumulate, and as above).
 */
typedef struct moert_norm_gradient {
    size_t sequences, rows, width;
    const moert_buffer *x, *weight, *rstd;
    moert_buffer *dy, *dx;
    bool accumulate;
    moert_buffer *partial;
    moert_buffer **scratch; /* growable, nothing is kept there between calls; NULL: GPUs go without,
                               more slowly, and the last bits of partial differ */
    moert_buffer *codes;
    moert_rotation rotation;
} moert_norm_gradient;
moert_status moert_norm_backward(const moert_norm_gradient *norm);
/* What it reserves of `scratch`. */
size_t moert_norm_scratch_floats(const moert_device *device, size_t sequences, size_t rows,
                                 size_t width);

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
moert_status moert_rope(const moert_rotation *rotation, size_t tokens, size_t head_size,
                        bool inverse, moert_buffer *x);
/* Its errors alone, for what rotates as well. */
moert_status moert_rope_check(const moert_rotation *rotation, size_t tokens, size_t head_size);

/* ---- cross-entropy ---- */

/*
 * loss[t] = -log softmax(logits[t])[target[t]]; then logits[T,V] becomes (softmax - onehot) *
 * factor in place when factor is not 0 (factor = 1 / tokens of the global batch). A target of -1 is
 * ignored: loss and gradient 0. A gradient of `type` BF16 is rounded to codes, which take the first
 * half of their row: they are a matrix [T,V] whose rows lie 2 V codes apart. Errors:
 * ERROR_UNSUPPORTED (another type).
 */
typedef struct moert_prediction {
    size_t tokens, vocabulary;
    const moert_buffer *target; /* int32 [T] */
    float factor;
    moert_dtype type; /* of the gradient: F32 (0) or BF16 */
    moert_buffer *logits, *loss;
} moert_prediction;
moert_status moert_cross_entropy(const moert_prediction *prediction);

/* ---- elementwise ---- */

/* y[n] += x[n] */
moert_status moert_add(size_t n, const moert_buffer *x, moert_buffer *y);

/* ---- sums ---- */

/* Local part of the tree over sequences: partial[at.span.count, n] is reduced to the span's
 * nodes. */
moert_status moert_tree_reduce(const moert_tree_nodes_at *at, size_t n,
                               const moert_buffer *partial);

/*
 * Sums of squares of `count` tensors, prepared once and taken after each step. Tensors of a buffer
 * that follow each other share a launch. A sum goes in chunks of fixed size from the tensor's
 * start, so it does not depend on where the tensor lies. create and sum block; the buffers must
 * outlive the object.
 *
 * Chunks are numbered tensor by tensor. Whoever has only some of them sums these, gets them, sets
 * all and joins them to the sums of the tensors: the bits are those of moert_squares_sum.
 */
enum { MOERT_SQUARES_CHUNK = 4096 }; /* floats, as in kernels/nn/reduce.cl */
typedef struct moert_squares moert_squares;
typedef struct moert_square_span {
    const moert_buffer *buffer;
    size_t offset, length; /* floats; a length of 0 is legal, its sum is 0 */
} moert_square_span;
moert_status moert_squares_create(moert_device *device, const moert_square_span *span, size_t count,
                                  moert_squares **squares);
moert_status moert_squares_sum(moert_squares *squares, double *sum); /* sum[count] */
size_t moert_squares_chunks(const moert_squares *squares);
/* Of the chunks [first, end). */
moert_status moert_squares_sum_chunks(moert_squares *squares, size_t first, size_t end);
/* sum[chunks]: those not summed are anything. Blocks. */
moert_status moert_squares_get_chunks(moert_squares *squares, double *sum);
moert_status moert_squares_set_chunks(moert_squares *squares, const double *sum);
moert_status moert_squares_join(moert_squares *squares, double *sum); /* sum[count] */
void moert_squares_destroy(moert_squares *squares);                   /* NULL is legal */

/* ---- AdamW (decoupled weight decay), in place over n floats; padding must be zero ---- */
typedef struct moert_adamw {
    double rate, beta1, beta2, epsilon, decay;
    double scale;          /* multiplies the gradient first (clipping) */
    uint64_t step;         /* counts from 1 */
    moert_buffer *rounded; /* gets the new parameters in bf16, to nearest even; or NULL */
    size_t at, state_at;   /* where parameter and gradient, and where the moments begin; 0 with
                              `rounded` */
} moert_adamw;
moert_status moert_adamw_step(const moert_adamw *adamw, size_t n, moert_buffer *parameter,
                              const moert_buffer *gradient, moert_buffer *first_moment,
                              moert_buffer *second_moment);
