/* The scalar arguments of kernels/nn (see args.h). */
#ifndef MOERT_ARGS_NN_H
#define MOERT_ARGS_NN_H

#include "args/args.h"

/* The floats (elementwise.cl, optimizer.cl) or columns (reduce.cl) that a row group processes. */
enum {
    MOERT_ELEMENTWISE_BLOCK = 4096,
    MOERT_ELEMENTWISE_GPU_BLOCK = 1024,
    MOERT_UPDATE_BLOCK = 4096,
    MOERT_UPDATE_GPU_BLOCK = 1024,
    MOERT_REDUCE_COLUMNS = 1024,
    MOERT_REDUCE_GPU_COLUMNS = 512
};

/* For embedding.cl. TOKENS: tokens of a row group of the forward. COLUMNS: columns of a row group
 * of the backward on CPUs. GPU_ROWS: the most table rows of a work-group of the backward on GPUs.
 * GRADIENT: columns of a row group of embedding_gradient. */
enum {
    MOERT_EMBEDDING_TOKENS = 16,
    MOERT_EMBEDDING_GPU_TOKENS = 1,
    MOERT_EMBEDDING_COLUMNS = 256,
    MOERT_EMBEDDING_GPU_ROWS = 8,
    MOERT_GRADIENT_COLUMNS = 256,
    MOERT_GRADIENT_GPU_COLUMNS = 128
};

/* Elements of a block of squares.cl. */
enum { MOERT_SQUARES_CHUNK = 4096 };

typedef struct moert_bias_args {
    args_u64 ldy, prob_stride;
    args_u32 skip, n, bias_stride;
    args_i32 accumulate;
    args_u32 columns;
} moert_bias_args;
MOERT_ARGS_LAYOUT(moert_bias_args, columns, 32, 40)

typedef struct moert_scale_args {
    args_u64 n;
    args_f32 scale;
} moert_scale_args;
MOERT_ARGS_LAYOUT(moert_scale_args, scale, 8, 16)

typedef struct moert_clip_args {
    args_u64 n;
    args_f32 limit;
} moert_clip_args;
MOERT_ARGS_LAYOUT(moert_clip_args, limit, 8, 16)

typedef struct moert_columns_args {
    args_u64 rows, block, repeat, from_stride, from_column, to_stride, to_column;
    args_i32 columns;
} moert_columns_args;
MOERT_ARGS_LAYOUT(moert_columns_args, columns, 56, 64)

typedef struct moert_digest_args {
    args_u64 at, stride, first;
    args_i32 words;
    args_u32 mask;
} moert_digest_args;
MOERT_ARGS_LAYOUT(moert_digest_args, mask, 28, 32)

typedef struct moert_digest_spans_args {
    args_u64 at, first_row, first;
} moert_digest_spans_args;
MOERT_ARGS_LAYOUT(moert_digest_spans_args, first, 16, 24)

typedef struct moert_embedding_args {
    args_u64 tokens, hidden, length, first_row, rows, share, first_leaf, stride, offset;
    args_i32 accumulate;
} moert_embedding_args;
MOERT_ARGS_LAYOUT(moert_embedding_args, accumulate, 72, 80)

typedef struct moert_loss_args {
    args_u64 vocabulary;
    args_f32 factor;
} moert_loss_args;
MOERT_ARGS_LAYOUT(moert_loss_args, factor, 8, 16)

typedef struct moert_norm_args {
    args_u64 rows, block, sequence_rows, pieces;
    args_i32 width, part;
    args_f32 epsilon;
    args_i32 heads, length, rotated, accumulate;
} moert_norm_args;
MOERT_ARGS_LAYOUT(moert_norm_args, accumulate, 56, 64)

typedef struct moert_update_args {
    args_u64 at, gradient_at, state_at, n, part, first, first_part, keys_at;
    args_f32 scale, keep, beta1, rest1, beta2, rest2, step, root, epsilon;
    args_u32 random_low, random_high;
} moert_update_args;
MOERT_ARGS_LAYOUT(moert_update_args, random_high, 104, 112)

/* For optimizer_fp8.cl: weights of `height` rows each. */
typedef struct moert_update_fp8_args {
    moert_update_args update;
    args_u64 height;
    args_i32 columns;
} moert_update_fp8_args;
MOERT_ARGS_LAYOUT(moert_update_fp8_args, columns, 120, 128)

typedef struct moert_tree_args {
    args_u64 n, stride, offset;
    args_u32 first, count, total;
    args_i32 accumulate;
} moert_tree_args;
MOERT_ARGS_LAYOUT(moert_tree_args, accumulate, 36, 40)

typedef struct moert_squares_args {
    args_u64 first_block;
    args_u32 first_tensor, last;
} moert_squares_args;
MOERT_ARGS_LAYOUT(moert_squares_args, last, 12, 16)

typedef struct moert_rope_args {
    args_u64 tokens, block, length;
    args_i32 heads, head_size, offset, width;
    args_f32 sign;
} moert_rope_args;
MOERT_ARGS_LAYOUT(moert_rope_args, sign, 40, 48)

#endif
