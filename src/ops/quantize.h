/*
 * Quantising matrices to the formats of moert/formats.h and back, behind the backends of
 * ops/grouped.h.
 *
 * Both backends give the same bytes. Every product and quotient of the formulas is rounded to
 * float32; NaN anywhere in a block makes its scale NaN (and the payload, where the element has
 * one); NaN anywhere in a tensor makes its amax NaN. Infinities saturate.
 *
 *   E8M0:  t = amax * f32(1/max), scale = t rounded up to a power of two (RCEIL), or
 *          2^(floor(log2 amax) - floor(log2 max)) (FLOOR); q = x / scale, which is exact
 *   F32:   scale = min(amax, FLT_MAX) / 448; q = x / scale, 0 where scale is 0
 *   NVFP4: A = amax of tensor or group, b = amax of the block, G = A / 2688 the global scale
 *     TE       S = min(2688/A, FLT_MAX), 1 if A or S is 0 (and then G = 1);
 *              scale = e4m3(b * (S * f32(1/6))); q = x * min(1/(scale * (1/S)), FLT_MAX)
 *     TORCHAO  scale = e4m3(clamp((b/6)/G, 2^-6, 448)); q = x * min((1/G)/scale, FLT_MAX)
 *     BRIDGE   G = max(A, 1e-8)/2688; scale = e4m3((b/G)/6); q = (x/G)/scale; all 0 where
 *              b/G < 6 * 2^-9
 *   Wherever scale (TORCHAO: G) is 0, q is 0.
 *
 * With `norm`, as in cuDNN's epilogues and whatever scale_rounding and nvfp4_rule say:
 *
 *   t = (amax * f32(1/max)) * norm, where max of E5M2 is 128
 *   E8M0:  scale = t rounded up, at most 2^127; E4M3: to nearest, at most 448
 *   q = x * min(norm * (1/scale), FLT_MAX), where 1/2^-127 counts as infinity; 0 where scale is 0
 *
 * so that q * scale = x * norm. A norm of 0, below, or NaN makes all scales NaN.
 *
 * x = (q * scale) * G on the way back.
 *
 * Calls enqueue and return; they are not collective. Errors: ERROR_USAGE (a buffer is missing or
 * too small, options that do not go together), ERROR_UNSUPPORTED (a count of 2^31 or more),
 * ERROR_DEVICE.
 */
#ifndef MOERT_OPS_QUANTIZE_H
#define MOERT_OPS_QUANTIZE_H

#include "moert/formats.h"
#include "ops/grouped.h"

typedef struct moert_quantize {
    moert_quantizer how;
    moert_groups
        groups;      /* ends NULL: all rows are one group; rows past the groups are left alone */
    size_t columns;  /* N */
    moert_buffer *x; /* float32 [M,N] at stride columns, see x_runs */
    moert_buffer *q; /* payload, see moert_quantized_shape_of() */
    moert_buffer *scale;  /* [P,N/block] and so on, see moert_axis */
    moert_buffer *global; /* NVFP4: G, float32 [1], or [groups.count] with group_scales */
    moert_buffer *amax;   /* NVFP4: A likewise; NULL: `global` is given, and S = 1/G */
    size_t x_runs;        /* quantise: 0, or x is [M,2N] and of its runs of so many columns the odd
                             ones count (GLU results between the gates) */
    moert_buffer *norm;   /* quantise: float32 [1], as in cuDNN's epilogues, or NULL.
                             NVFP4: it is 1/G; amax, global and group_scales do not count. Not with
                             FP8_BLOCK */
    size_t blocks;        /* P that q and scale have room for, 0 = moert_row_blocks_most(); blocks
                             past it are left out */
    size_t row_bytes;     /* 0, or ROW with scales of one byte: the payload of each row is followed
                             by its scales, in rows of so many bytes of q; `scale` is not used */
} moert_quantize;

/* amax[1] or [groups.count] = largest |x|, rotated if `how` says so; 0 for no rows. `how.axis`,
 * `how.hadamard` and `how.group_scales` matter, buffers x and amax are used. */
moert_status moert_quantize_amax(const moert_quantize *op);
/* q, scale and, unless amax is NULL, global from x. */
moert_status moert_quantize_run(const moert_quantize *op);
/* x from q, scale and global; a rotation is not undone. */
moert_status moert_dequantize_run(const moert_quantize *op);

/* The quantiser with AUTO rounding decided; beside a norm, without what norm takes the place of. */
moert_quantizer moert_quantizer_settled(const moert_quantizer *how, bool norm);

/* The type of a format's elements. */
moert_number moert_format_element(moert_format format);

/* P = sum of ceil(rows/block) over the groups, and the most it can be for M rows in G groups. */
size_t moert_row_blocks(const uint32_t *ends, size_t groups, size_t block);
size_t moert_row_blocks_most(size_t rows, size_t groups, size_t block);

/* q[q_lines, q_bytes] and scale[scale_lines, scales] of x[M,N] with P blocks of rows. */
typedef struct moert_quantized_shape {
    size_t q_lines, q_bytes, scale_lines, scales;
} moert_quantized_shape;
moert_quantized_shape moert_quantized_shape_of(const moert_quantizer *how, size_t rows,
                                               size_t columns, size_t blocks);
/* The same of an operation; with row_bytes, q_bytes and scales are the distances of rows. */
moert_quantized_shape moert_quantized_layout(const moert_quantize *op);

/* target[n] = source[n], one of the types float32, the other any of 8 bits or more. */
typedef struct moert_cast {
    moert_number from, to;
    size_t n;
    const moert_buffer *source;
    moert_buffer *target;
} moert_cast;

moert_status moert_cast_run(const moert_cast *cast);

#endif
