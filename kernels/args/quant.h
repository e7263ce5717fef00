/* The numbers among the arguments of kernels/quant (see args.h). */
#ifndef MOERT_ARGS_QUANT_H
#define MOERT_ARGS_QUANT_H

#include "args/args.h"

#define MOERT_AMAX_ARGS(X, S)                                                                      \
    X(S, uint, groups, 0)                                                                          \
    X(S, uint, rows, 4)                                                                            \
    X(S, int, columns, 8)                                                                          \
    X(S, int, hadamard, 12)                                                                        \
    X(S, int, group_scales, 16)                                                                    \
    X(S, uint, count, 20)                                                                          \
    X(S, int, rule, 24)
MOERT_ARGS_STRUCT(moert_amax_args, MOERT_AMAX_ARGS, 28)

#define MOERT_SCALES_ARGS(X, S)                                                                    \
    X(S, uint, groups, 0)                                                                          \
    X(S, uint, rows, 4)                                                                            \
    X(S, uint, width, 8)                                                                           \
    X(S, int, transposed, 12)                                                                      \
    X(S, int, whole, 16)                                                                           \
    X(S, uint, tiles, 20)                                                                          \
    X(S, uint, block, 24)                                                                          \
    X(S, uint, most, 28)                                                                           \
    X(S, uint, first_stride, 32)                                                                   \
    X(S, uint, second_stride, 36)
MOERT_ARGS_STRUCT(moert_scales_args, MOERT_SCALES_ARGS, 40)

#define MOERT_INTERLEAVE_ARGS(X, S)                                                                \
    X(S, ulong, width, 0)                                                                          \
    X(S, ulong, granularity, 8)                                                                    \
    X(S, ulong, element_bytes, 16)                                                                 \
    X(S, int, inverse, 24)
MOERT_ARGS_STRUCT(moert_interleave_args, MOERT_INTERLEAVE_ARGS, 32)

#define MOERT_QUANTIZE_ARGS(X, S)                                                                  \
    X(S, ulong, q_bytes, 0)                                                                        \
    X(S, ulong, scales, 8)                                                                         \
    X(S, ulong, seed, 16)                                                                          \
    X(S, uint, groups, 24)                                                                         \
    X(S, uint, rows, 28)                                                                           \
    X(S, int, columns, 32)                                                                         \
    X(S, int, strip, 36)                                                                           \
    X(S, int, x_runs, 40)                                                                          \
    X(S, int, x_type, 44)                                                                          \
    X(S, int, group_scales, 48)                                                                    \
    X(S, int, scale_rounding, 52)                                                                  \
    X(S, int, hadamard, 56)                                                                        \
    X(S, uint, blocks, 60)
MOERT_ARGS_STRUCT(moert_quantize_args, MOERT_QUANTIZE_ARGS, 64)

#endif
