/* The scalar arguments of kernels/op (see args.h). */
#ifndef MOERT_ARGS_OP_H
#define MOERT_ARGS_OP_H

#include "args/args.h"

/* The elements of a weight that a work-group of rows.cl moves. */
enum { MOERT_OP_WEIGHT_BLOCK = 4096 };

/* Arguments of the kernels in kernels/op/rows.cl that move rows. `peak`: the offset of the matrix
 * peak (rows.cl) in the buffer of the GEMM's sums, in floats; 0 if there is no peak. */
typedef struct moert_rows_args {
    args_u64 stride, peak;
    args_u32 groups, rows;
    args_i32 type;
    args_u32 divisor;
    args_i32 width;
    args_u32 split;
    args_f32 beta_all;
    args_i32 bias_type;
} moert_rows_args;
MOERT_ARGS_LAYOUT(moert_rows_args, bias_type, 44, 48)

typedef struct moert_moved_weight_args {
    args_u64 elements;
    args_u32 first, slot, weight_group;
    args_i32 type;
    args_f32 beta_all;
} moert_moved_weight_args;
MOERT_ARGS_LAYOUT(moert_moved_weight_args, beta_all, 24, 32)

/* Arguments of kernels/op/glu.cl. `wide` and `peak`: the offsets of these two matrices of glu.cl in
 * the buffer of the GEMM's sums, in floats; 0 if the matrix is not written. */
typedef struct moert_glu_args {
    args_u64 c_stride, d_stride, wide, peak;
    args_u32 groups, rows;
    args_i32 bias_type, c_type, d_type, width, run, linear_first;
    args_f32 limit, slope, offset;
    args_u32 split;
    args_i32 type, columns, activation;
} moert_glu_args;
MOERT_ARGS_LAYOUT(moert_glu_args, activation, 88, 96)

#endif
