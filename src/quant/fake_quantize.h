/*
 * Fake quantization: rounds a matrix to the values of a block-scaled format, as bf16 operands of
 * GEMMs, in one pass. The results are those of moert_quantize_run followed by moert_dequantize_run
 * to bf16, whose payload and scales are not stored.
 *
 * An E2M1 or E4M3 value times its block's scale is exact in bf16, and so is its product with a
 * global scale that is a power of two. So NVFP4 operands here have the global scales
 *
 *   G = A / 2688, rounded up to a power of two from 2^-126 on; 1 if A is 0
 *
 * where A is the largest magnitude of the row (`along`), or of the rows of the block (`down`). A row
 * then has the same values on whatever rank it is, without a maximum over all ranks. Sums of
 * products need no factor, and add up over parts of the rows. With the published G = A / 2688, block
 * scales could be larger by a factor below 2.
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
    moert_buffer *amax;  /* NVFP4: float32 [M], for the largest magnitude of each row */
    moert_buffer *along; /* bf16 [M,N]: rounded in blocks of consecutive columns; or NULL */
    moert_buffer *down;  /* bf16 [M,N]: rounded in blocks of consecutive rows of a group, as
                                   MOERT_AXIS_COLUMN; or NULL */
} moert_fake_quantize;

/* Computes `along` and `down` from x. Bytes: reads x (NVFP4: twice), writes the results. */
moert_status moert_fake_quantize_run(const moert_fake_quantize *op);
