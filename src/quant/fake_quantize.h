/*
 * Fake quantization: rounds a matrix to the values of a block-scaled format, as bf16 operands of
 * GEMMs, in one pass. The results are those of moert_quantize_run followed by moert_dequantize_run
 * to bf16, whose payload and scales are not stored.
 *
 * An E2M1 or E4M3 value times its block's scale is exact in bf16, and so is its product with a
 * global scale that is a power of two. So NVFP4 operands here have the global scale
 *
 *   G = A / 2688, rounded up to a power of two; 1 if A is 0
 *
 * where A is the amax of the tensor. Sums of products then need no factor, and add up over parts of
 * the rows. With the published G = A / 2688, block scales could be larger by a factor below 2.
 *
 * The calls enqueue and return; they are not collective. Errors: ERROR_USAGE (a buffer is missing
 * or too small), ERROR_UNSUPPORTED (a count of 2^31 or more, another
 * rounding), ERROR_DEVICE, ERROR_MEMORY.
 */
#pragma once

#include "moert/quantize.h"

typedef struct moert_fake_quantize {
    moert_quantizer how;   /* rounds to nearest; axis, transposed and hadamard are not used */
    moert_groups groups;   /* ends NULL: all rows are one group */
    size_t columns;        /* N */
    const moert_buffer *x; /* [M,N] of x_type (F32 or BF16) at x_stride elements (0: dense) */
    moert_dtype x_type;
    size_t x_stride;
    moert_buffer *amax;         /* float32 [1], or [groups.count] with group_scales */
    const moert_buffer *global; /* NVFP4: G, of the shape of amax */
    moert_buffer *along;        /* bf16 [M,N]: rounded in blocks of consecutive columns; or NULL */
    moert_buffer *down;         /* bf16 [M,N]: rounded in blocks of consecutive rows of a group, as
                                   MOERT_AXIS_COLUMN; or NULL */
} moert_fake_quantize;

/* amax = the largest |x|. Bytes: reads x. */
moert_status moert_fake_quantize_amax(const moert_fake_quantize *op);
/* Computes `along` and `down` from x and, for NVFP4, `global`. Bytes: reads x, writes the results. */
moert_status moert_fake_quantize_run(const moert_fake_quantize *op);

/* to[count] = the power-of-two global scales of float32 amax[count]. */
typedef struct moert_power_globals {
    size_t count;
    const moert_buffer *amax;
    moert_buffer *to;
} moert_power_globals;
moert_status moert_power_globals_run(const moert_power_globals *op);
