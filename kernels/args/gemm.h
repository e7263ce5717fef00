/* The scalar arguments of kernels/gemm (see args.h). */
#ifndef MOERT_ARGS_GEMM_H
#define MOERT_ARGS_GEMM_H

#include "args/args.h"

/* Sizes that src/gemm/portable and kernels/gemm agree on. */
enum {
    MOERT_VECTOR = 16,           /* lanes of a vector for CPUs: columns of a panel or a tile */
    MOERT_GEMM_IDLE_LAYERS = 1,  /* layers at the start of a grid whose work-groups compute nothing
                                   (docs/design.md, "One launch") */
    MOERT_GEMM_STRIP = 64,       /* most lines of A that a wgrad packs at a time */
    MOERT_GEMM_LINE_EXCESS = 16, /* most padding after a converted line, in dots */
    MOERT_GEMM_PANELS_PAST = 3,  /* panels that a tile may read past the end of prepacked weights */
    MOERT_GPU_GEMM_ITEMS = 256,  /* work-items and columns of a tile in the GPU form */
    MOERT_GPU_GEMM_COLUMNS = 128,
};

/* Arguments of the portable GEMMs. kernels/gemm/gemm.cl, prepacked.cl and gpu.cl explain the
 * fields. */
typedef struct moert_gemm_args {
    args_u64 ldx, ldy, y_column, prob_stride, lda, a_column, ldc, c_column;
    args_u32 start, skip, groups, shared, rows;
    args_i32 n, k, width, reduction, accumulate, axis, transposed, panels, depth, split, height,
        every, keep, once, quantized, interleaved;
    args_f32 limit, alpha, offset;
    args_i32 activation;
} moert_gemm_args;
MOERT_ARGS_LAYOUT(moert_gemm_args, activation, 160, 168)

/* Arguments of kernels/gemm/glu.cl. */
typedef struct moert_plain_glu_args {
    args_u64 prob_stride;
    args_u32 first_row, rows;
    args_i32 width, interleaved;
    args_f32 limit, alpha, offset;
    args_u32 split;
    args_i32 activation;
} moert_plain_glu_args;
MOERT_ARGS_LAYOUT(moert_plain_glu_args, activation, 40, 48)

#endif
