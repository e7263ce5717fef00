/*
 * Fake quantization: rounds a matrix to the values of a block-scaled format, as bf16 operands of
 * GEMMs, in one pass. The results are those of moert_quantize_run followed by moert_dequantize_run
 * to bf16, whose payload and scales are not stored, with two differences:
 *
 *   NVFP4       scale = amax * f32(1/6), rounded to a float32 with 3 mantissa bits, to nearest
 *               even; 0 below 2^-126
 *   FP8_BLOCK   scale = amax * f32(1/448), rounded up to a power of two (RCEIL)
 *
 * where amax is the block's. So every value, an E2M1 or E4M3 value times its block's scale, is
 * exact in bf16. NVFP4's scale has E4M3's rounding without E4M3's limits, so no global scale is
 * needed: the values are those of NVFP4 with any power of two as global scale for which the block's
 * scale is neither subnormal nor too large. A row then has the same values whatever rank it is on,
 * without a maximum over all ranks, and sums of products need no factor.
 *
 * The call enqueues and returns; it is not collective. Errors: ERROR_USAGE (a buffer is missing
 * or too small), ERROR_UNSUPPORTED (a count of 2^31 or more, options that the fields do not list),
 * ERROR_DEVICE, ERROR_MEMORY.
 */
#pragma once

#include "moert/quantize.h"

typedef struct moert_fake_quantize {
    /* format, scale_rounding; axis TILE: blocks are tiles, and `along` and `down` are equal;
     * rounding NEAREST or, of E2M1 elements, STOCHASTIC by `seed` and `draws`; hadamard (NVFP4, not
     * TILE): whole blocks of `down` are rotated first; NVFP4 only by the rule TE. The other fields
     * are not used */
    moert_quantizer how;
    moert_groups groups;   /* ends NULL: all rows are one group */
    size_t columns;        /* N */
    const moert_buffer *x; /* [M,N] of x_type (F32 or BF16) at x_stride elements (0: dense) */
    moert_dtype x_type;
    size_t x_stride;
    /* STOCHASTIC: at word `draws_at`, uint32 [groups, 2]: (first stream, first row). Rows of a
     * group draw as the rows row + first row (modulo 2^32) of the stream first stream + `stream`;
     * `down` draws from the next stream. NULL: rows of group g draw as the rows of the stream
     * `stream` + 2 g, counted from the group's first row */
    const moert_buffer *draws;
    size_t draws_at;
    uint32_t stream;
    moert_buffer *along; /* bf16 [M,N]: rounded in blocks of consecutive columns; or NULL */
    moert_buffer *down;  /* bf16 [M,N]: rounded in blocks of consecutive rows of a group, as
                            MOERT_AXIS_COLUMN; or NULL */
} moert_fake_quantize;

/* Computes `along` and `down` from x. Bytes: reads x, writes the results. */
moert_status moert_fake_quantize_run(const moert_fake_quantize *op);
