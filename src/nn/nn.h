/*
 * The operations of a transformer other than GEMMs, attention and updates of weights (optimizer.h):
 * embedding, RMSNorm, rotary positions, cross-entropy and sums. Matrices are float32 and row-major,
 * and kernels are portable OpenCL (kernels/lib/common.h), unless said otherwise.
 *
 * Bits: the result of a row or a sequence depends only on that row or sequence. A parameter's
 * gradient has one partial per sequence, partial[S,...], summed over rows in order;
 * moert_tree_reduce adds the partials. T = S * length may be 0.
 */
#pragma once

#include "args/nn.h"
#include "base/rope.h"
#include "base/tree.h"
#include "device/elements.h"
#include "moert/device.h"
#include "moert/formats.h"

/* The destination of sums over the sequences of a span: the sum of the span's i-th tree node is
 * stored at target[i * stride + offset ...] (floats) or, with `accumulate`, added there. */
typedef struct moert_tree_nodes_at {
    moert_span span;
    moert_buffer *target;
    size_t stride, offset;
    bool accumulate;
} moert_tree_nodes_at;

/* ---- embedding ---- */

/* x[T,H] = table[token[t]]; token int32 [T], all below the table's rows (checked by the data
 * reader). A negative token is padding in all embedding functions: its x is 0, and it has no
 * gradient. */
moert_status moert_embedding_forward(size_t tokens, size_t hidden, const moert_buffer *table,
                                     const moert_buffer *token, moert_buffer *x);
/* partial[s,r,:] = sum of dx[t,:] over the tokens t of sequence first_sequence + s with token[t] =
 * first_row + r, in order. */
typedef struct moert_embedding_part {
    size_t sequences, length, hidden, first_row, rows;
    const moert_buffer *token, *dx;
    moert_buffer *partial;
    size_t first_sequence;
} moert_embedding_part;
moert_status moert_embedding_backward(const moert_embedding_part *part);
/*
 * The gradient of all `rows` of the table, summed to the nodes of the tree without partials. The
 * results have the bits of moert_embedding_backward followed by moert_tree_reduce.
 * moert_embedding_links computes link[T,2] from the tokens, on the host.
 */
typedef struct moert_embedding_sum {
    size_t length, hidden, rows;
    const moert_buffer *token, *link, *dx;
    moert_tree_nodes_at at;
} moert_embedding_sum;
moert_status moert_embedding_gradient(const moert_embedding_sum *sum);
/* For each token t: link[t,0] = the tree node of t if t is the first token of its table row in that
 * node, else -1; link[t,1] = the next token of the same table row in the node, or -1. Tokens equal
 * to `fixed` (-1: no token) get no links, so their table row gets no gradient. Errors:
 * ERROR_MEMORY, ERROR_UNSUPPORTED (2^31 tokens or more). */
moert_status moert_embedding_links(moert_span span, size_t length, size_t rows, int32_t fixed,
                                   const int32_t *token, int32_t *link);

/* ---- RMSNorm: y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + epsilon), over rows of `width`
 * ---- */

/* A rotation of rows. Each row is a head: each token has `heads` heads, in sequences of `length`
 * tokens. `table` is made by moert_rope_table_create for the same width and pairs; NULL: no
 * rotation. */
typedef struct moert_rotation {
    const moert_buffer *table;
    const moert_buffer *positions; /* int32 [T], each below the table's length
                                      (moert_documents_positions, attention/documents.h); NULL: the
                                      position of token t is t mod length */
    size_t heads, length;
    size_t width;     /* rotated elements of a head; 0: all elements */
    size_t offset;    /* index in the head of the first rotated element */
    bool interleaved; /* `interleaved` of the moert_rope_scheme that made the table */
} moert_rotation;

/*
 * x, y [R,width] (may be the same buffer), weight [width], rstd [R] kept for backward. `bf16`,
 * unless NULL, gets y rounded to bf16 as by a cast. With `bf16`, y may be NULL. For norms over
 * heads, R = T
 * * heads and width = head_size, and the result may be rotated. With a rotation and `bf16`, y is
 * required as scratch, and y's contents are unspecified afterwards. Errors: ERROR_USAGE (width 0,
 * no result buffer, no scratch, R not a multiple of heads, those of moert_rope).
 */
typedef struct moert_norm {
    size_t rows, width;
    float epsilon;
    const moert_buffer *x, *weight;
    moert_buffer *y, *bf16; /* [R,width] in float32 and bf16, or NULL */
    moert_buffer *rstd;
    moert_rotation rotation;
} moert_norm;
moert_status moert_norm_run(const moert_norm *norm);
/*
 * dx[R,width] (+)= gradient of x; partial[S,width] = gradient of weight, R / S consecutive rows per
 * sequence. Without `accumulate`, dy and dx may be the same buffer. `bf16`, unless NULL, gets dx
 * rounded to bf16. With `bf16`, dx may be NULL. dy of rotated rows is rotated back first, possibly
 * in place. Errors: ERROR_USAGE (width 0, R not a multiple of S, `accumulate` without dx, and those
 * of moert_norm_run).
 */
typedef struct moert_norm_gradient {
    size_t sequences, rows, width;
    const moert_buffer *x, *weight, *rstd;
    moert_buffer *dy, *dx;
    bool accumulate;
    moert_buffer *partial;
    moert_buffer **scratch; /* a growable buffer that keeps nothing between calls. With NULL, the
                               last bits of `partial` differ, and GPUs are slower */
    moert_buffer *bf16;     /* bf16 [R,width], or NULL */
    moert_rotation rotation;
} moert_norm_gradient;
moert_status moert_norm_backward(const moert_norm_gradient *norm);
/* Floats that moert_norm_backward reserves in `scratch`. */
size_t moert_norm_scratch_floats(const moert_device *device, size_t sequences, size_t rows,
                                 size_t width);

/* ---- rotary positions ---- */

/*
 * Creates the table of cosines and sines for the scheme's pairs at `length` positions. Values are
 * rounded to float32 at the same steps as in Hugging Face's transformers. Blocks. The caller owns
 * the table, which serves all layers and any shorter length. Errors: those of
 * moert_rope_scheme_check, ERROR_MEMORY, ERROR_DEVICE.
 */
moert_status moert_rope_table_create(moert_device *device, const moert_rope_scheme *scheme,
                                     size_t length, moert_buffer **table);
size_t moert_rope_table_bytes(const moert_rope_scheme *scheme, size_t length);
/*
 * Rotates x[T,heads,head_size] in place, each token by its position. `inverse` rotates back, as the
 * backward pass needs. Errors: ERROR_USAGE (rotated elements odd or not inside the head, table
 * shorter than the length, positions for fewer than T tokens).
 */
moert_status moert_rope(const moert_rotation *rotation, size_t tokens, size_t head_size,
                        bool inverse, moert_buffer *x);
/* bf16[T,heads,head_size] = x rotated, and rounded as by a cast. `bf16` must not be the buffer
 * x. */
moert_status moert_rope_bf16(const moert_rotation *rotation, size_t tokens, size_t head_size,
                             const moert_buffer *x, moert_buffer *bf16);
/* Validates the arguments of moert_rope without launching a kernel. */
moert_status moert_rope_check(const moert_rotation *rotation, size_t tokens, size_t head_size);
/* The number of rotated elements of a head. */
static inline size_t moert_rotation_width(const moert_rotation *rotation, size_t head_size) {
    return rotation->width > 0 ? rotation->width : head_size;
}

/* ---- cross-entropy ---- */

/*
 * loss[t] = -log softmax(logits[t])[target[t]]; then logits[T,V] becomes (softmax - onehot) *
 * factor in place when factor is not 0 (factor = 1 / targets of the global batch). A target of -1
 * is ignored: the token's loss and gradient are 0. A gradient of `type` BF16 occupies the first
 * half of each row: a matrix [T,V] of bf16 values with stride 2 V. Errors: ERROR_UNSUPPORTED
 * (another type).
 */
typedef struct moert_prediction {
    size_t tokens, vocabulary;
    const moert_buffer *target; /* int32 [T] */
    float factor;
    moert_dtype type; /* dtype of the gradient: F32 (0) or BF16 */
    moert_buffer *logits, *loss;
} moert_prediction;
moert_status moert_cross_entropy(const moert_prediction *prediction);

/* ---- elementwise ---- */

/* y[n] += x[n] */
moert_status moert_add(size_t n, const moert_buffer *x, moert_buffer *y);
/* y[n] = y[n] * scale + x[n], rounded once. */
moert_status moert_add_scaled(size_t n, float scale, const moert_buffer *x, moert_buffer *y);
/* y[n] *= scale */
moert_status moert_scale(size_t n, float scale, moert_buffer *y);
/* y[n] = x[n] limited to [-limit, limit]; a NaN stays a NaN. x and y are different buffers. Errors:
 * ERROR_USAGE (limit not positive). */
moert_status moert_clip(size_t n, float limit, const moert_buffer *x, moert_buffer *y);
/* The gradient of moert_clip, in place: dy[n] = 0 where x[n], the input of moert_clip, lies beyond
 * the limit. */
moert_status moert_clip_backward(size_t n, float limit, const moert_buffer *x, moert_buffer *dy);

/* ---- blocks of columns ---- */

/*
 * copy: to[r,c] = from[r / repeat,c]; sum: to[r,c] = the sum over i < repeat, in order, of
 * from[r * repeat + i,c]; for r < rows, c < columns, counted from from_column and to_column. Each
 * of copy and sum is the gradient of the other. from and to may be the same buffer, but not the
 * same elements. `to` is of `type`, to which results are rounded as by a cast. Errors: ERROR_USAGE
 * (columns beyond a stride), ERROR_UNSUPPORTED (another type).
 *
 * With heads as rows, copy and sum join and split the tensors of multi-head latent attention: a key
 * [T, heads, nope + rope] is made of copies of each head's nope part and of the rope part, which
 * all heads share (repeat = heads). The gradient of the shared part is a sum.
 */
typedef struct moert_columns {
    size_t rows, columns;
    size_t repeat; /* 0 counts as 1 */
    const moert_buffer *from;
    size_t from_stride, from_column; /* elements between the starts of rows; index of the first
                                        column */
    moert_dtype type;                /* dtype of `to`: F32 (0) or BF16 */
    moert_buffer *to;
    size_t to_stride, to_column;
} moert_columns;
moert_status moert_columns_copy(const moert_columns *columns);
moert_status moert_columns_sum(const moert_columns *columns);

/* ---- sums ---- */

/* Reduces partial[at.span.count, n], the partials of a rank's sequences, to the tree nodes of the
 * span. */
moert_status moert_tree_reduce(const moert_tree_nodes_at *at, size_t n,
                               const moert_buffer *partial);

/*
 * Sums of squares of `count` tensors, prepared once and computed after each step. One launch
 * computes the sums of consecutive tensors of the same buffer. A tensor's sum adds the sums of
 * chunks of fixed size, counted from the tensor's start, so the sum does not depend on the tensor's
 * offset. create and sum block; the buffers must outlive the object.
 *
 * Chunks are numbered tensor by tensor. A rank with a shard calls sum_chunks and get_chunks for its
 * range of chunks, and then set_chunks and join with the sums of all ranks' chunks. The results
 * have the bits of moert_squares_sum.
 */
typedef struct moert_squares moert_squares;
typedef struct moert_square_span {
    moert_elements x; /* values of the span; all spans of a buffer have the same dtype */
    size_t length;    /* 0 is legal; the sum of an empty span is 0 */
} moert_square_span;
moert_status moert_squares_create(moert_device *device, const moert_square_span *span, size_t count,
                                  moert_squares **squares);
moert_status moert_squares_sum(moert_squares *squares, double *sum); /* sum[count] */
size_t moert_squares_chunks(const moert_squares *squares);
/* Sums the chunks [first, end). */
moert_status moert_squares_sum_chunks(moert_squares *squares, size_t first, size_t end);
/* Copies the sums of the chunks to sum[chunks]; chunks that were not summed have unspecified
 * values. Blocks. */
moert_status moert_squares_get_chunks(moert_squares *squares, double *sum);
moert_status moert_squares_set_chunks(moert_squares *squares, const double *sum);
moert_status moert_squares_join(moert_squares *squares, double *sum); /* sum[count] */
void moert_squares_destroy(moert_squares *squares);                   /* NULL is legal */

/* ---- digests ---- */

/*
 * digest[first + r], uint64, = a digest of the `bytes` bytes of row r of x. Rows that differ in one
 * bit have different digests; other differences are missed about once in 2^64. Errors: ERROR_USAGE
 * (2^31 words in a row).
 */
typedef struct moert_digest {
    size_t rows, bytes; /* bytes of a row; the row's memory ends at a multiple of 4 bytes */
    const moert_buffer *x;
    size_t stride, at; /* floats between the starts of rows, and before the first row */
    moert_buffer *digest;
    size_t first;
} moert_digest;
moert_status moert_digest_rows(const moert_digest *digest);

/*
 * digest[first + r], uint64, = a digest of row first_row + r of a table. A row has `elements`
 * elements of x.buffer, from element x.at + begin (modulo 2^64) on. The digest depends only on the
 * bits of these elements.
 */
typedef struct moert_digest_row {
    uint64_t begin, elements; /* fewer than 2^31 */
} moert_digest_row;
typedef struct moert_span_digest {
    moert_elements x;
    const moert_buffer *table; /* moert_digest_row of each row */
    size_t first_row, rows;
    size_t sizes; /* a multiple of 4 only if all numbers in the table are multiples of 4 */
    moert_buffer *digest;
    size_t first;
} moert_span_digest;
moert_status moert_digest_spans(const moert_span_digest *digest);

/* Digests of buffers; a flush reads the digests together. */
typedef struct moert_digest_queue {
    moert_buffer *digests; /* [rows] */
    struct moert_digest_entry {
        uint64_t *hash;
        size_t rows;
    } * entry;
    size_t count, room, rows;
} moert_digest_queue;
/* After a flush, *hash = a hash of the previous *hash and of the floats [at, at + floats) that x
 * holds now. Errors: ERROR_MEMORY, ERROR_DEVICE. */
moert_status moert_digest_add(moert_digest_queue *queue, const moert_buffer *x, size_t at,
                              size_t floats, uint64_t *hash);
/* Waits for the device. */
moert_status moert_digest_flush(moert_digest_queue *queue);
void moert_digest_free(moert_digest_queue *queue);

/* *hash = a hash of the previous *hash and of the floats [at, at + floats) of x. Waits for the
 * device. `scratch`: a growable buffer. Errors: ERROR_MEMORY, ERROR_DEVICE. */
moert_status moert_digest_floats(const moert_buffer *x, size_t at, size_t floats,
                                 moert_buffer **scratch, uint64_t *hash);
