/* The numbers among the arguments of kernels/attention (see args.h). */
#ifndef MOERT_ARGS_ATTENTION_H
#define MOERT_ARGS_ATTENTION_H

#include "args/args.h"

#define MOERT_ATTENTION_ARGS(X, S)                                                                 \
    X(S, ulong, length, 0)                                                                         \
    X(S, int, heads, 8)                                                                            \
    X(S, int, kv_heads, 12)                                                                        \
    X(S, float, scale, 16)
MOERT_ARGS_STRUCT(moert_attention_args, MOERT_ATTENTION_ARGS, 24)

#define MOERT_ROUND_ARGS(X, S)                                                                     \
    X(S, ulong, rows, 0)                                                                           \
    X(S, ulong, stride, 8)                                                                         \
    X(S, ulong, column, 16)                                                                        \
    X(S, ulong, length, 24)                                                                        \
    X(S, ulong, from, 32)                                                                          \
    X(S, int, columns, 40)                                                                         \
    X(S, float, factor, 44)                                                                        \
    X(S, int, heads, 48)
MOERT_ARGS_STRUCT(moert_round_args, MOERT_ROUND_ARGS, 56)

#define MOERT_NVIDIA_ATTENTION_ARGS(X, S)                                                          \
    X(S, ulong, stats_at, 0)                                                                       \
    X(S, int, tiles, 8)                                                                            \
    X(S, int, length, 12)                                                                          \
    X(S, int, heads, 16)                                                                           \
    X(S, int, kv_heads, 20)                                                                        \
    X(S, int, sequences, 24)                                                                       \
    X(S, float, scale, 28)
MOERT_ARGS_STRUCT(moert_nvidia_attention_args, MOERT_NVIDIA_ATTENTION_ARGS, 32)

#endif
