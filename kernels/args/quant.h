/* The scalar arguments of kernels/quant (see args.h). */
#ifndef MOERT_ARGS_QUANT_H
#define MOERT_ARGS_QUANT_H

#include "args/args.h"
#include "args/forms.h"

/* Values that a row group of cast.cl converts; rows of a block of amax.cl. */
enum { MOERT_CAST_BLOCK = 4096, MOERT_CAST_GPU_BLOCK = 2048, MOERT_AMAX_ROWS = 16 };

/* For decode_gpu.cl. ROW_GROUPS and ITEMS: the row groups and the work-items of a work-group.
 * AHEAD: the number of units that a work-item decodes. UNIT: the elements of a unit. */
enum {
    MOERT_DECODE_ROW_GROUPS = 4,
    MOERT_DECODE_ITEMS = MOERT_DECODE_ROW_GROUPS * MOERT_GPU_ITEMS,
    MOERT_DECODE_AHEAD = 8,
    MOERT_DECODE_UNIT = 8
};

/* FP8 operands of tensor cores: the length of a block, and the multiple to which rows of a group
 * are padded in operands of wgrad. */
enum { MOERT_FP8_BLOCK = 128, MOERT_FP8_ROW_MULTIPLE = 16 };

/* A tile of scales (moert/quantize.h) has 128 rows of 4 scales. */
enum { MOERT_TILE_ROWS = 128, MOERT_TILE_SCALES = 4, MOERT_TILE_BYTES = 512 };

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
    args_u64 q_bytes, scales, seed, x_stride;
    args_u32 groups, rows;
    args_i32 columns, strip, x_runs, x_type, group_scales, scale_rounding, hadamard;
    args_u32 blocks, draws_at, stream;
} moert_quantize_args;
MOERT_ARGS_LAYOUT(moert_quantize_args, stream, 76, 80)

#endif
