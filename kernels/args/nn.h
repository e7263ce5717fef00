/* The numbers among the arguments of kernels/nn (see args.h). */
#ifndef MOERT_ARGS_NN_H
#define MOERT_ARGS_NN_H

#include "args/args.h"

#define MOERT_BIAS_ARGS(X, S)                                                                      \
    X(S, ulong, ldy, 0)                                                                            \
    X(S, ulong, prob_stride, 8)                                                                    \
    X(S, uint, skip, 16)                                                                           \
    X(S, uint, n, 20)                                                                              \
    X(S, int, accumulate, 24)                                                                      \
    X(S, uint, columns, 28)
MOERT_ARGS_STRUCT(moert_bias_args, MOERT_BIAS_ARGS, 32)

#define MOERT_EMBEDDING_ARGS(X, S)                                                                 \
    X(S, ulong, tokens, 0)                                                                         \
    X(S, ulong, hidden, 8)                                                                         \
    X(S, ulong, length, 16)                                                                        \
    X(S, ulong, first_row, 24)                                                                     \
    X(S, ulong, rows, 32)                                                                          \
    X(S, ulong, share, 40)                                                                         \
    X(S, ulong, first_leaf, 48)                                                                    \
    X(S, ulong, stride, 56)                                                                        \
    X(S, ulong, offset, 64)                                                                        \
    X(S, int, accumulate, 72)
MOERT_ARGS_STRUCT(moert_embedding_args, MOERT_EMBEDDING_ARGS, 80)

#define MOERT_LOSS_ARGS(X, S)                                                                      \
    X(S, ulong, vocabulary, 0)                                                                     \
    X(S, float, factor, 8)
MOERT_ARGS_STRUCT(moert_loss_args, MOERT_LOSS_ARGS, 16)

#define MOERT_NORM_ARGS(X, S)                                                                      \
    X(S, ulong, rows, 0)                                                                           \
    X(S, ulong, block, 8)                                                                          \
    X(S, ulong, sequence_rows, 16)                                                                 \
    X(S, ulong, pieces, 24)                                                                        \
    X(S, int, width, 32)                                                                           \
    X(S, float, epsilon, 36)                                                                       \
    X(S, int, heads, 40)                                                                           \
    X(S, int, length, 44)                                                                          \
    X(S, int, accumulate, 48)
MOERT_ARGS_STRUCT(moert_norm_args, MOERT_NORM_ARGS, 56)

#define MOERT_ADAMW_ARGS(X, S)                                                                     \
    X(S, ulong, at, 0)                                                                             \
    X(S, ulong, state_at, 8)                                                                       \
    X(S, ulong, n, 16)                                                                             \
    X(S, float, scale, 24)                                                                         \
    X(S, float, keep, 28)                                                                          \
    X(S, float, beta1, 32)                                                                         \
    X(S, float, rest1, 36)                                                                         \
    X(S, float, beta2, 40)                                                                         \
    X(S, float, rest2, 44)                                                                         \
    X(S, float, step, 48)                                                                          \
    X(S, float, root, 52)                                                                          \
    X(S, float, epsilon, 56)
MOERT_ARGS_STRUCT(moert_adamw_args, MOERT_ADAMW_ARGS, 64)

#define MOERT_TREE_ARGS(X, S)                                                                      \
    X(S, ulong, n, 0)                                                                              \
    X(S, ulong, stride, 8)                                                                         \
    X(S, ulong, offset, 16)                                                                        \
    X(S, uint, first, 24)                                                                          \
    X(S, uint, count, 28)                                                                          \
    X(S, uint, total, 32)                                                                          \
    X(S, int, accumulate, 36)
MOERT_ARGS_STRUCT(moert_tree_args, MOERT_TREE_ARGS, 40)

#define MOERT_SQUARES_ARGS(X, S)                                                                   \
    X(S, ulong, first_block, 0)                                                                    \
    X(S, uint, first_tensor, 8)                                                                    \
    X(S, uint, last, 12)
MOERT_ARGS_STRUCT(moert_squares_args, MOERT_SQUARES_ARGS, 16)

#define MOERT_ROPE_ARGS(X, S)                                                                      \
    X(S, ulong, tokens, 0)                                                                         \
    X(S, ulong, block, 8)                                                                          \
    X(S, ulong, length, 16)                                                                        \
    X(S, int, heads, 24)                                                                           \
    X(S, int, head_size, 28)                                                                       \
    X(S, float, sign, 32)
MOERT_ARGS_STRUCT(moert_rope_args, MOERT_ROPE_ARGS, 40)

#endif
