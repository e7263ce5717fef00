/*
 * Operations that ops with quantized operands (op/convert.c) need in addition to those of
 * moert/quantize.h. These operations exist only as entries of the backends. They enqueue and
 * return.
 *
 *   block_ends    to[g] = min(sum over i <= g of ceil(rows of group i / block), most)
 *   fold_globals  to[g] = alpha[g] * (first * second); NULL = 1
 *   transpose     to[g][c][r] = from[g][r][c]
 */
#pragma once

#include "args/quant.h"
#include "base/memory.h"
#include "moert/quantize.h"

/* Lines, and columns, of linear scales that a tile holds. A row of a tile holds scales of one line
 * of the linear scales or, if these are transposed, of one of their columns. */
static inline size_t moert_tile_lines(bool transposed) {
    return transposed ? MOERT_TILE_SCALES : MOERT_TILE_ROWS;
}
static inline size_t moert_tile_columns(bool transposed) {
    return moert_tile_lines(!transposed);
}

/* Bytes of a row of tiles, which holds moert_tile_lines() lines of `width` scales. */
static inline size_t moert_tiles_across_bytes(size_t width, bool transposed) {
    return moert_ceil_div(width, moert_tile_columns(transposed)) * MOERT_TILE_BYTES;
}

typedef struct moert_block_ends {
    moert_groups groups;
    size_t block, most;
    moert_buffer *to; /* uint32 [groups.count] */
} moert_block_ends;

typedef struct moert_global_scales {
    size_t groups;
    const moert_buffer *alpha;          /* float32 [groups] */
    const moert_buffer *first, *second; /* float32 [1], or [groups] if first_by_groups or
                                           second_by_groups is set */
    bool first_by_groups, second_by_groups;
    moert_buffer *to; /* float32 [groups] */
} moert_global_scales;

typedef struct moert_transpose {
    size_t groups, rows, columns;
    size_t element_bytes; /* 1, 2 or 4 */
    const moert_buffer *from;
    moert_buffer *to;
} moert_transpose;
