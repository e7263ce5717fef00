/*
 * The scalar arguments of kernels/gemm/nvidia (see args.h), and the sizes that C and kernels share.
 * A tile has LINES x COLUMNS results. A block has K values of the reduction, and a ring has STAGES
 * stages. GROUP: the tiles that are computed down a column before the next column. OUTS: the pieces
 * of local memory, for results, of each of 8 warps.
 */
#ifndef MOERT_ARGS_GEMM_NVIDIA_H
#define MOERT_ARGS_GEMM_NVIDIA_H

#include "args/args.h"

enum {
    MOERT_NVIDIA_LINES = 128, /* lines of a tile, in all kernels */
    MOERT_NVIDIA_PIECE_BYTES = 2048,
};

enum {
    MOERT_MMA_COLUMNS = 128,
    MOERT_MMA_GROUP = 16,
};

/* ENDS_AT: the offset, in bytes of local memory (the arena), of the array of the groups' ends. */
enum {
    MOERT_WGMMA_COLUMNS = 256,
    MOERT_WGMMA_K = 64,
    MOERT_WGMMA_STAGES = 4,
    MOERT_WGMMA_OUTS = 2,
    MOERT_WGMMA_GROUP = 16,
    MOERT_WGMMA_STAGE_BYTES = (MOERT_NVIDIA_LINES + MOERT_WGMMA_COLUMNS) * MOERT_WGMMA_K * 2,
    MOERT_WGMMA_BARRIERS_AT = MOERT_WGMMA_STAGES * MOERT_WGMMA_STAGE_BYTES +
                              8 * MOERT_WGMMA_OUTS * MOERT_NVIDIA_PIECE_BYTES,
    MOERT_WGMMA_ENDS_AT = MOERT_WGMMA_BARRIERS_AT + 256,
};

enum {
    MOERT_FP8_COLUMNS = 256,
    MOERT_FP8_K = 128, /* number of K values that share a scale; except in wgrad, also number of
                          columns that share one */
    MOERT_FP8_STAGES = 4,
    MOERT_FP8_OUTS = 1,
    MOERT_FP8_GROUP = 8,
    MOERT_FP8_STAGE_BYTES = (MOERT_NVIDIA_LINES + MOERT_FP8_COLUMNS) * MOERT_FP8_K,
    MOERT_FP8_BARRIERS_AT =
        MOERT_FP8_STAGES * MOERT_FP8_STAGE_BYTES + 8 * MOERT_FP8_OUTS * MOERT_NVIDIA_PIECE_BYTES,
};
/* The offset of the groups' ends, as above, if a stage has `scales` floats of scales. */
#define MOERT_FP8_ENDS_AT(scales)                                                                  \
    (MOERT_FP8_BARRIERS_AT + 128 + (32 + 4 * (scales)) * MOERT_FP8_STAGES)
#define MOERT_FP8_MOST_SCALES (MOERT_NVIDIA_LINES + MOERT_FP8_COLUMNS)

/* PARTS: the bf16 parts of a float32 value. STAGES is how many stages fit into the arena, with 16
 * bytes of barriers for each. */
enum { MOERT_SPLIT_PARTS = 3, MOERT_SPLIT_K = 32 };
#define MOERT_SPLIT_STAGE_BYTES(columns)                                                           \
    (MOERT_NVIDIA_LINES * MOERT_SPLIT_K * 4 + MOERT_SPLIT_PARTS * (columns)*MOERT_SPLIT_K * 2)
#define MOERT_SPLIT_STAGES(arena, columns) ((arena) / (MOERT_SPLIT_STAGE_BYTES(columns) + 16))

/* The addresses of a quantized operand, and of the bf16 values that wgmma.cl decodes. A kernel
 * parameter for each address would be too many, and OpenCL allows no pointers in a struct. */
typedef struct moert_nvidia_quantized {
    args_u64 payload, scales, bf16;
} moert_nvidia_quantized;

/* Arguments of kernels/gemm/nvidia/mma.cl and wgmma.cl. */
typedef struct moert_nvidia_gemm_args {
    moert_nvidia_quantized a, b; /* used for quantized operands only */
    args_u64 first_a, lda, first_b, ldb, ldg, ldc, first_column, row_scale_stride, ldv;
    args_u32 down, first_end, skip, groups, lines, columns, terms;
    args_f32 limit, slope, offset;
    args_i32 activation;
} moert_nvidia_gemm_args;
MOERT_ARGS_LAYOUT(moert_nvidia_gemm_args, activation, 160, 168)

/* Arguments of kernels/gemm/nvidia/split.cl. */
typedef struct moert_split_args {
    args_u64 ldc, first_column, rows, stride, first;
    args_u32 groups, lines, columns, terms, accumulate;
} moert_split_args;
MOERT_ARGS_LAYOUT(moert_split_args, accumulate, 56, 64)

/* Arguments of kernels/gemm/nvidia/fp8.cl. */
typedef struct moert_fp8_args {
    args_u64 ldc;
    args_u32 groups, lines, columns, terms, blocks, s_line, s_block, t_group, t_block, t_column;
} moert_fp8_args;
MOERT_ARGS_LAYOUT(moert_fp8_args, t_column, 44, 48)

#endif
