/*
 * Fake quantization: rounds a matrix to the values of a block-scaled format, as bf16 operands of
 * GEMMs, in one pass. The results are those of moert_quantize_run followed by moert_dequantize_run
 * to bf16, whose payload and scales are not stored.
 *
 * An E2M1 or E4M3 value times its block's scale is exact in bf16. With NVFP4 the scale is
 *
 *   amax * f32(1/6), rounded to a float32 with 3 mantissa bits, to nearest even; 0 below 2^-126
 *
 * where amax is the block's. This is E4M3's rounding without E4M3's limits, so no global scale is
 * needed: the values are those of NVFP4 with any power of two as global scale for which the block's
 * scale is neither subnormal nor too large. A row then has the same values whatever rank it is on,
 * without a maximum over all ranks, and sums of products need no factor.
 *
 * The call enqueues and returns; it is not collective. Errors: ERROR_USAGE (a buffer is missing
 * or too small), ERROR_UNSUPPORTED (a count of 2^31 or more, another
 * rounding or rule), ERROR_DEVICE, ERROR_MEMORY.
 */
#pragma once

#include "moert/quantize.h"

typedef struct moert_fake_quantize {
    moert_quantizer how;   /* rounds to nearest, NVFP4 by the rule TE; axis, transposed, hadamard
                              and group_scales are not used */
    moert_groups groups;   /* ends NULL: all rows are one group */
    size_t columns;        /* N */
    const moert_buffer *x; /* [M,N] of x_type (F32 or BF16) at x_stride elements (0: dense) */
    moert_dtype x_type;
    size_t x_stride;
    moert_buffer *along; /* bf16 [M,N]: rounded in blocks of consecutive columns; or NULL */
    moert_buffer *down;  /* bf16 [M,N]: rounded in blocks of consecutive rows of a group, as
                                   MOERT_AXIS_COLUMN; or NULL */
} moert_fake_quantize;

/* Computes `along` and `down` from x. Bytes: reads x, writes the results. */
moert_status moert_fake_quantize_run(const moert_fake_quantize *op);
