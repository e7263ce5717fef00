/* The scalar arguments of kernels/quant (see args.h). */
#ifndef MOERT_ARGS_QUANT_H
#define MOERT_ARGS_QUANT_H

#include "args/args.h"

typedef struct moert_amax_args {
    args_u32 groups, rows;
    args_i32 columns, hadamard, group_scales;
    args_u32 count;
    args_i32 rule;
} moert_amax_args;
MOERT_ARGS_LAYOUT(moert_amax_args, rule, 24, 28)

typedef struct moert_scales_args {
    args_u32 groups, rows, width;
    args_i32 transposed, whole;
    args_u32 tiles, block, most, first_stride, second_stride;
} moert_scales_args;
MOERT_ARGS_LAYOUT(moert_scales_args, second_stride, 36, 40)

typedef struct moert_interleave_args {
    args_u64 width, granularity, element_bytes;
    args_i32 inverse;
} moert_interleave_args;
MOERT_ARGS_LAYOUT(moert_interleave_args, inverse, 24, 32)

typedef struct moert_quantize_args {
    args_u64 q_bytes, scales, seed;
    args_u32 groups, rows;
    args_i32 columns, strip, x_runs, x_type, group_scales, scale_rounding, hadamard;
    args_u32 blocks;
} moert_quantize_args;
MOERT_ARGS_LAYOUT(moert_quantize_args, blocks, 60, 64)

#endif
