/* The numbers among the arguments of kernels/gemm (see args.h). */
#ifndef MOERT_ARGS_GEMM_H
#define MOERT_ARGS_GEMM_H

#include "args/args.h"

#define MOERT_ROWS_ARGS(X, S)                                                                      \
    X(S, ulong, stride, 0)                                                                         \
    X(S, uint, groups, 8)                                                                          \
    X(S, uint, rows, 12)                                                                           \
    X(S, int, type, 16)                                                                            \
    X(S, uint, divisor, 20)                                                                        \
    X(S, int, width, 24)                                                                           \
    X(S, uint, split, 28)                                                                          \
    X(S, float, beta_all, 32)                                                                      \
    X(S, int, bias_type, 36)
MOERT_ARGS_STRUCT(moert_rows_args, MOERT_ROWS_ARGS, 40)

#define MOERT_MOVED_WEIGHT_ARGS(X, S)                                                              \
    X(S, ulong, elements, 0)                                                                       \
    X(S, uint, first, 8)                                                                           \
    X(S, uint, slot, 12)                                                                           \
    X(S, uint, place, 16)                                                                          \
    X(S, int, type, 20)                                                                            \
    X(S, float, beta_all, 24)
MOERT_ARGS_STRUCT(moert_moved_weight_args, MOERT_MOVED_WEIGHT_ARGS, 32)

#define MOERT_GLU_ARGS(X, S)                                                                       \
    X(S, ulong, c_stride, 0)                                                                       \
    X(S, ulong, d_stride, 8)                                                                       \
    X(S, uint, groups, 16)                                                                         \
    X(S, uint, rows, 20)                                                                           \
    X(S, int, bias_type, 24)                                                                       \
    X(S, int, c_type, 28)                                                                          \
    X(S, int, d_type, 32)                                                                          \
    X(S, int, width, 36)                                                                           \
    X(S, int, run, 40)                                                                             \
    X(S, int, linear_first, 44)                                                                    \
    X(S, float, limit, 48)                                                                         \
    X(S, float, slope, 52)                                                                         \
    X(S, float, offset, 56)                                                                        \
    X(S, uint, split, 60)                                                                          \
    X(S, int, type, 64)                                                                            \
    X(S, int, columns, 68)
MOERT_ARGS_STRUCT(moert_glu_args, MOERT_GLU_ARGS, 72)

#endif
