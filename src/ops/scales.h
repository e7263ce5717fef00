/*
 * Layouts around quantised weights: scale matrices in tiles, gate and up columns in runs.
 *
 * Calls enqueue and return; they are not collective. Errors as in ops/quantize.h.
 */
#ifndef MOERT_OPS_SCALES_H
#define MOERT_OPS_SCALES_H

#include "ops/grouped.h"

/*
 * Scale matrices in tiles of 128 x 4, as the block-scaled tensor core instructions read them (the
 * same in cuBLAS, cuDNN, CUTLASS, TransformerEngine, torchao). The scale of row r and block c of a
 * matrix with C blocks in a row is at byte
 *
 *   ((r/128) * ceil(C/4) + c/4) * 512 + (r%32) * 16 + (r%128)/32 * 4 + c%4
 *
 * and bytes without a scale are 0. `linear` holds `lines` lines of `width` scales. Lines are rows
 * r; with `transposed`, lines are blocks c and columns rows, as COLUMN quantisation leaves them.
 * Each group of lines is a matrix of its own that starts a new tile; the matrices follow each
 * other: scales of experts' rows in one buffer (lines = rows), of stacked experts (equal groups).
 */
typedef struct moert_scale_tiles {
    moert_groups groups; /* of lines; ends NULL: one group */
    size_t width;
    bool transposed;
    bool whole;             /* the groups are one matrix of groups.rows lines; those past the last
                               end are left alone, as are tiles without a line before it */
    moert_buffer *linear;   /* bytes [lines, width] */
    moert_buffer *swizzled; /* bytes of moert_swizzled_bytes() */
    size_t tiles;           /* rows (transposed: columns) of tiles that `swizzled` has room for,
                               0 = as many as there can be; groups past it are left out */
} moert_scale_tiles;

moert_status moert_swizzle(const moert_scale_tiles *op);
moert_status moert_unswizzle(const moert_scale_tiles *op);

/* Bytes of all matrices' tiles, by the groups' ends; `lines` of one group when ends is NULL. */
size_t moert_swizzled_bytes(const uint32_t *ends, size_t groups, size_t lines, size_t width,
                            bool transposed);

/*
 * What ops with quantised operands (ops/op_converted.c) need besides; entries of the backends only.
 *
 *   block_ends    to[g] = min(sum over i <= g of ceil(rows of group i / block), most)
 *   fold_globals  to[g] = alpha[g] * (first * second); NULL = 1
 *   transpose     to[g][c][r] = from[g][r][c]
 */
typedef struct moert_block_ends {
    moert_groups groups;
    size_t block, most;
    moert_buffer *to; /* uint32 [groups.count] */
} moert_block_ends;

typedef struct moert_global_scales {
    size_t groups;
    const moert_buffer *alpha;          /* float32 [groups] */
    const moert_buffer *first, *second; /* float32 [1], or [groups] if by groups */
    bool first_by_groups, second_by_groups;
    moert_buffer *to; /* float32 [groups] */
} moert_global_scales;

typedef struct moert_transpose {
    size_t groups, rows, columns;
    size_t element_bytes; /* 1 or 4 */
    const moert_buffer *from;
    moert_buffer *to;
} moert_transpose;

/*
 * Gate and up columns in alternating runs: with `inverse` false, to[M,2I] gets runs of
 * `granularity` columns in turn from the halves [gate | up] of from[M,2I]; with `inverse` true the
 * other way. Granularity 1 (gpt-oss), 8 (DeepGEMM, bridge), 32 (cuDNN), I (halves: a copy). An
 * element is `element_bytes` long; whole weight rows may be one element.
 */
typedef struct moert_interleave {
    size_t rows, width; /* M, I */
    size_t granularity, element_bytes;
    bool inverse;
    const moert_buffer *from;
    moert_buffer *to;
} moert_interleave;

moert_status moert_interleave_run(const moert_interleave *op);

/* offsets[E] = inclusive sums of counts[E]; on the host. ERROR_UNSUPPORTED past 2^31 - 1. */
moert_status moert_expert_offsets(const uint64_t *counts, size_t experts, int32_t *offsets);

#endif
