/*
 * Quantizes matrices to the formats of moert/formats.h and back, and converts layouts. The results
 * are operands of moert/ops.h.
 *
 *   moert_quantize op = MOERT_QUANTIZE_INIT;   describe: op.how, op.groups, op.columns, the buffers
 *   moert_quantize_amax(&op);                  NVFP4: op.amax from op.x
 *   moert_quantize_run(&op);                   op.q and op.scale, NVFP4: op.global, from op.x
 *   moert_dequantize_run(&op);                 op.x from op.q, op.scale and op.global
 *
 * The reference and portable kernels (MOERT_BACKEND) give the same bytes. Every multiplication and
 * division of the formulas is rounded to float32. A NaN element makes its block's scale and its own
 * payload NaN. A NaN in a tensor makes the tensor's amax NaN. Infinities saturate.
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
 *   q is 0 wherever scale (TORCHAO: G) is 0.
 *
 * With `norm` (as in cuDNN's epilogues), scale_rounding and nvfp4_rule are ignored:
 *
 *   t = (amax * f32(1/max)) * norm, where max of E5M2 is 128
 *   E8M0:  scale = t rounded up, at most 2^127; E4M3: to nearest, at most 448
 *   q = x * min(norm * (1/scale), FLT_MAX), where 1/2^-127 counts as infinity; 0 where scale is 0
 *
 * So q * scale = x * norm up to rounding. A norm that is 0, negative or NaN makes all scales NaN.
 *
 * Dequantizing computes x = (q * scale) * G, and rounds it to the dtype of x.
 *
 * Calls that take a description enqueue work and return. The first call of a kind compiles its
 * kernels; the reference backend computes before it returns. All buffers are on one device and
 * belong to the caller, who may reuse them in queue order. Outputs must not overlap inputs. Calls
 * without a description read and write host memory. No call is collective.
 *
 * Errors of every call that takes a description: ERROR_USAGE (size is not the initialiser's, a
 * buffer is missing or too small, options contradict each other; the reference backend also detects
 * decreasing ends), ERROR_UNSUPPORTED (a count of 2^31 or more), ERROR_DEVICE, ERROR_MEMORY.
 *
 * The semantics follow OCP Microscaling 1.0, TransformerEngine, torchao, cuDNN frontend and
 * DeepSeek-V3's files.
 */
#ifndef MOERT_QUANTIZE_H
#define MOERT_QUANTIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moert/device.h"
#include "moert/formats.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The groups of a matrix [M,...]: rows [ends[g-1], ends[g]) belong to group (expert) g. */
typedef struct moert_groups {
    const moert_buffer *ends; /* uint32 [count], cumulative, non-decreasing */
    size_t count;             /* G */
    size_t rows;              /* M, at least ends[G-1]; rows past ends[G-1] are not touched */
} moert_groups;

/* ---- quantize and dequantize ---- */

typedef struct moert_quantize {
    size_t size; /* sizeof(moert_quantize) */
    moert_quantizer how;
    moert_groups groups;  /* ends NULL: all rows are one group */
    size_t columns;       /* N */
    moert_buffer *x;      /* float32 [M,N], see x_runs */
    moert_dtype x_type;   /* dequantize: the dtype of x, F32 (0) or BF16 */
    moert_buffer *q;      /* payload, see moert_quantized_shape_of() */
    moert_buffer *scale;  /* shape: see moert_axis */
    moert_buffer *global; /* NVFP4: the global scale G, float32 [1], or [groups.count] with
                             group_scales */
    moert_buffer *amax;   /* NVFP4: the amax A, of the same shape as global. NULL: global is an
                             input, and S = 1/G */
    size_t x_runs;        /* quantize: 0, or the length of a run: x is [M,2N] in runs of this many
                             columns, and only every second run (1, 3, ...) is read (GLU results
                             between the gates) */
    moert_buffer *norm;   /* quantize: float32 [1], as in cuDNN's epilogues, or NULL. NVFP4: norm is
                             1/G; amax, global and group_scales are ignored. Not with FP8_BLOCK */
    size_t blocks;        /* P: the row blocks for which q and scale have room; 0 means
                             moert_row_blocks_most(). The kernels write no blocks past P */
    size_t row_bytes;     /* 0, or for ROW blocks with scales of one byte: the bytes of a row of q,
                             which then has a row's payload followed by its scales, as in messages.
                             With row_bytes, `scale` is not used */
} moert_quantize;

/* MXFP8 E4M3 along rows, RCEIL. */
#define MOERT_QUANTIZE_INIT                                                                        \
    MOERT_INIT(moert_quantize, quantize_, MOERT_SET(quantize_, how, MOERT_QUANTIZER_INIT))

/* amax[1] or [groups.count] = largest |x|, after the rotation of `how.hadamard`; 0 for no rows.
 * Uses `how.axis`, `how.hadamard`, `how.group_scales`, and the buffers x and amax. Bytes: reads
 * 4MN. */
MOERT_API moert_status moert_quantize_amax(const moert_quantize *op);

/* Computes q, scale and, unless amax is NULL, global from x. Bytes: reads 4MN, writes q and scale
 * in the shapes of moert_quantized_shape_of(). */
MOERT_API moert_status moert_quantize_run(const moert_quantize *op);

/* Computes x from q, scale and global; does not undo a rotation. Bytes: reads the results of
 * moert_quantize_run, writes x. */
MOERT_API moert_status moert_dequantize_run(const moert_quantize *op);

/* moert_row_blocks: P = sum of ceil(rows/block) over the groups of ends[groups] (host).
 * moert_row_blocks_most: the largest P of M rows in G groups. block is at least 1. */
MOERT_API size_t moert_row_blocks(const uint32_t *ends, size_t groups, size_t block);
MOERT_API size_t moert_row_blocks_most(size_t rows, size_t groups, size_t block);

/* q[q_lines, q_bytes] and scale[scale_lines, scales]; a scale has moert_format_scale_bytes(). */
typedef struct moert_quantized_shape {
    size_t q_lines, q_bytes, scale_lines, scales;
} moert_quantized_shape;

/* The shapes of q and scale for x[rows, columns] with P = `blocks`, which ROW ignores. `how` must
 * be legal. */
MOERT_API moert_quantized_shape moert_quantized_shape_of(const moert_quantizer *how, size_t rows,
                                                         size_t columns, size_t blocks);

/* ---- casts ---- */

/* target[n] = source[n], rounded to nearest even. One of the dtypes must be F32; the other may be
 * any dtype but E2M1. */
typedef struct moert_cast {
    size_t size; /* sizeof(moert_cast) */
    moert_dtype from, to;
    size_t n;
    const moert_buffer *source; /* [n] */
    moert_buffer *target;       /* [n] */
} moert_cast;

#define MOERT_CAST_INIT MOERT_INIT(moert_cast, cast_, )

/* Bytes: reads and writes n elements. Errors: also ERROR_USAGE for other pairs of dtypes. */
MOERT_API moert_status moert_cast_run(const moert_cast *cast);

/* ---- layouts ---- */

/*
 * Scale matrices in tiles of 128 x 4, as the block-scaled tensor core instructions read scales.
 * cuBLAS, cuDNN, CUTLASS, TransformerEngine and torchao use the same tiles. In a matrix with C
 * blocks per row, the scale of row r and block c is at byte
 *
 *   ((r/128) * ceil(C/4) + c/4) * 512 + (r%32) * 16 + (r%128)/32 * 4 + c%4
 *
 * Bytes without a scale are 0. `linear` holds `lines` lines of `width` scales. A line is a row r of
 * the matrix. With `transposed`, as COLUMN quantization stores scales, a line is a block c, and the
 * columns are rows r. Each group of lines is a separate matrix that starts a new tile, and the
 * matrices follow each other. So one buffer can hold the scales of all experts: of their activation
 * rows (a line per row) or of their stacked weights (groups of equal size).
 */
typedef struct moert_scale_tiles {
    size_t size;         /* sizeof(moert_scale_tiles) */
    moert_groups groups; /* groups of lines; ends NULL: one group */
    size_t width;
    bool transposed;
    bool whole; /* the groups are one matrix of groups.rows lines. Lines past the last end, and
                   tiles with only such lines, are not touched */
    moert_buffer *linear;   /* bytes [lines, width] */
    moert_buffer *swizzled; /* bytes of moert_swizzled_bytes() */
    size_t tiles;           /* rows (transposed: columns) of tiles for which `swizzled` has room, 0
                               = enough for any ends; groups that do not fit are not written */
} moert_scale_tiles;

#define MOERT_SCALE_TILES_INIT MOERT_INIT(moert_scale_tiles, tiles_, )

/* moert_swizzle: swizzled from linear; moert_unswizzle: linear from swizzled. Bytes: reads one of
 * these buffers, writes the other. */
MOERT_API moert_status moert_swizzle(const moert_scale_tiles *op);
MOERT_API moert_status moert_unswizzle(const moert_scale_tiles *op);

/* Bytes of the tiles of all matrices, from ends[groups] (host). With ends NULL: bytes of one group
 * of `lines` lines, below 2^32. If moert_scale_tiles.tiles is 0, `swizzled` has the bytes of one
 * group of u * moert_row_blocks_most(lines, groups, u) lines, with u = 128, or 4 if transposed. */
MOERT_API size_t moert_swizzled_bytes(const uint32_t *ends, size_t groups, size_t lines,
                                      size_t width, bool transposed);

/*
 * Converts between two orders of gate and up columns: alternating runs of each, or halves (all
 * gates, then all ups). With `inverse` false, to[M,2I] gets runs of `granularity` columns,
 * alternately from the two halves [gate | up] of from[M,2I]. With `inverse` true, from[M,2I] has
 * the runs and to[M,2I] gets the halves. Granularities in use are 1 (gpt-oss), 8 (DeepGEMM, bridge)
 * and 32 (cuDNN). With granularity I, the runs are the halves, and the call only copies. An element
 * has `element_bytes` bytes, and may be a whole row of a weight.
 */
typedef struct moert_interleave {
    size_t size;        /* sizeof(moert_interleave) */
    size_t rows, width; /* M, I */
    size_t granularity, element_bytes;
    bool inverse;
    const moert_buffer *from; /* [M,2I] */
    moert_buffer *to;         /* [M,2I] */
} moert_interleave;

#define MOERT_INTERLEAVE_INIT MOERT_INIT(moert_interleave, interleave_, )

/* Bytes: reads and writes 2MI elements. Errors: also ERROR_USAGE if I is no multiple of the
 * granularity. */
MOERT_API moert_status moert_interleave_run(const moert_interleave *op);

/* offsets[E] = inclusive sums of counts[E], both on the host: the ends of moert_groups. Errors:
 * ERROR_UNSUPPORTED (a sum exceeds 2^31 - 1; offsets are not written). */
MOERT_API moert_status moert_expert_offsets(const uint64_t *counts, size_t experts,
                                            int32_t *offsets);

#ifdef __cplusplus
}
#endif
#endif
