/* The numbers among the arguments of kernels/gemm (see args.h). */
#ifndef MOERT_ARGS_GEMM_H
#define MOERT_ARGS_GEMM_H

#include "args/args.h"

/* Of the portable GEMMs: what the kernels of kernels/gemm/gemm.cl, packed.cl and gpu.cl say. */
#define MOERT_GEMM_ARGS(X, S)                                                                      \
    X(S, ulong, ldx, 0)                                                                            \
    X(S, ulong, ldy, 8)                                                                            \
    X(S, ulong, y_column, 16)                                                                      \
    X(S, ulong, prob_stride, 24)                                                                   \
    X(S, ulong, lda, 32)                                                                           \
    X(S, ulong, a_column, 40)                                                                      \
    X(S, ulong, ldc, 48)                                                                           \
    X(S, ulong, c_column, 56)                                                                      \
    X(S, uint, start, 64)                                                                          \
    X(S, uint, skip, 68)                                                                           \
    X(S, uint, groups, 72)                                                                         \
    X(S, uint, shared, 76)                                                                         \
    X(S, uint, rows, 80)                                                                           \
    X(S, int, n, 84)                                                                               \
    X(S, int, k, 88)                                                                               \
    X(S, int, width, 92)                                                                           \
    X(S, int, reduction, 96)                                                                       \
    X(S, int, accumulate, 100)                                                                     \
    X(S, int, axis, 104)                                                                           \
    X(S, int, flipped, 108)                                                                        \
    X(S, int, panels, 112)                                                                         \
    X(S, int, depth, 116)                                                                          \
    X(S, int, split, 120)                                                                          \
    X(S, int, height, 124)                                                                         \
    X(S, int, every, 128)                                                                          \
    X(S, int, keep, 132)                                                                           \
    X(S, int, coded, 136)                                                                          \
    X(S, int, interleaved, 140)                                                                    \
    X(S, float, limit, 144)                                                                        \
    X(S, float, alpha, 148)                                                                        \
    X(S, float, offset, 152)
MOERT_ARGS_STRUCT(moert_gemm_args, MOERT_GEMM_ARGS, 160)

/* Of kernels/gemm/glu.cl. */
#define MOERT_PLAIN_GLU_ARGS(X, S)                                                                 \
    X(S, ulong, prob_stride, 0)                                                                    \
    X(S, uint, first_row, 8)                                                                       \
    X(S, uint, rows, 12)                                                                           \
    X(S, int, width, 16)                                                                           \
    X(S, int, interleaved, 20)                                                                     \
    X(S, float, limit, 24)                                                                         \
    X(S, float, alpha, 28)                                                                         \
    X(S, float, offset, 32)                                                                        \
    X(S, uint, split, 36)
MOERT_ARGS_STRUCT(moert_plain_glu_args, MOERT_PLAIN_GLU_ARGS, 40)

/* Of kernels/gemm/nvidia. */
#define MOERT_NVIDIA_GEMM_ARGS(X, S)                                                               \
    X(S, ulong, first_a, 0)                                                                        \
    X(S, ulong, lda, 8)                                                                            \
    X(S, ulong, first_b, 16)                                                                       \
    X(S, ulong, ldb, 24)                                                                           \
    X(S, ulong, ldg, 32)                                                                           \
    X(S, ulong, ldc, 40)                                                                           \
    X(S, ulong, first_column, 48)                                                                  \
    X(S, ulong, factor_stride, 56)                                                                 \
    X(S, ulong, ldv, 64)                                                                           \
    X(S, uint, down, 72)                                                                           \
    X(S, uint, first_end, 76)                                                                      \
    X(S, uint, skip, 80)                                                                           \
    X(S, uint, groups, 84)                                                                         \
    X(S, uint, lines, 88)                                                                          \
    X(S, uint, columns, 92)                                                                        \
    X(S, uint, terms, 96)                                                                          \
    X(S, float, limit, 100)                                                                        \
    X(S, float, slope, 104)                                                                        \
    X(S, float, offset, 108)
MOERT_ARGS_STRUCT(moert_nvidia_gemm_args, MOERT_NVIDIA_GEMM_ARGS, 112)

#define MOERT_SPLIT_ARGS(X, S)                                                                     \
    X(S, ulong, ldc, 0)                                                                            \
    X(S, ulong, first_column, 8)                                                                   \
    X(S, ulong, rows, 16)                                                                          \
    X(S, ulong, stride, 24)                                                                        \
    X(S, ulong, first, 32)                                                                         \
    X(S, uint, groups, 40)                                                                         \
    X(S, uint, lines, 44)                                                                          \
    X(S, uint, columns, 48)                                                                        \
    X(S, uint, terms, 52)                                                                          \
    X(S, uint, accumulate, 56)
MOERT_ARGS_STRUCT(moert_split_args, MOERT_SPLIT_ARGS, 64)

#define MOERT_FP8_ARGS(X, S)                                                                       \
    X(S, ulong, ldc, 0)                                                                            \
    X(S, uint, groups, 8)                                                                          \
    X(S, uint, lines, 12)                                                                          \
    X(S, uint, columns, 16)                                                                        \
    X(S, uint, terms, 20)                                                                          \
    X(S, uint, s_line, 24)                                                                         \
    X(S, uint, t_group, 28)                                                                        \
    X(S, uint, t_block, 32)                                                                        \
    X(S, uint, t_column, 36)
MOERT_ARGS_STRUCT(moert_fp8_args, MOERT_FP8_ARGS, 40)

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
