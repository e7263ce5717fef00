/*
 * Included by the kernels that convert number formats: conversions (lib/encodings.h), loads and
 * stores of elements (lib/elements.h), the choices that the host passes as numbers, and the
 * position of a row group's rows.
 */
#ifndef MOERT_LIB_FORMATS_H
#define MOERT_LIB_FORMATS_H

#include "lib/elements.h"
#include "lib/encodings.h"

enum { ROW, COLUMN, TILE };                     /* moert_axis */
enum { RCEIL, FLOOR };                          /* moert_scale_rounding */
enum { TE, TORCHAO, BRIDGE };                   /* moert_nvfp4_rule */
enum { AUTO, NEAREST, HALF_STEPS, STOCHASTIC }; /* moert_rounding */

#ifndef TRANSPOSED
#define TRANSPOSED 0
#endif

/* If the scales have no buffer of their own, those of a row follow its payload. */
#define SCALES_OF(q, scale, columns)                                                               \
    ((scale) != 0 ? (scale) : (q) + ((columns)*ELEMENT_BITS + 7) / 8)

/* The end of group g, which begins at `start`. The result lies within the rows, whatever `ends`
 * holds. If `ends` is null there is one group. */
static inline uint group_end(global const uint *ends, uint g, uint start, uint rows) {
    return ends != 0 ? max(start, min(ends[g], rows)) : rows;
}

/* The group and the rows of row block `slot`, counted over all groups; no rows beyond the last
 * block. */
typedef struct row_block {
    uint group, row, rows;
} row_block;

/* Row `slot`. The row's group is computed only if with_group is set, since that takes several
 * steps; otherwise the group is 0. */
static inline row_block find_row(global const uint *ends, uint groups, uint rows, bool with_group,
                                 uint slot) {
    const bool inside = slot < (ends != 0 ? min(rows, groups > 0 ? ends[groups - 1] : 0) : rows);
    return inside ? (row_block){with_group && ends != 0 ? group_of(ends, groups, slot) : 0, slot, 1}
                  : (row_block){0, 0, 0};
}

#ifdef HAS_WARPS
/* Each item looks at one group; a step covers 32 groups. */
static inline row_block find_row_block(global const uint *ends, uint groups, uint rows, uint height,
                                       uint slot) {
    for (uint first = 0; first < groups; first += MOERT_ITEMS) {
        const uint g = min(first + (uint)get_local_id(0), groups - 1);
        const uint start = g > 0 ? min(ends[g - 1], rows) : 0,
                   end = group_end(ends, g, start, rows);
        const uint blocks =
            first + get_local_id(0) < groups ? (end - start + height - 1) / height : 0;
        const uint sum = sum_to_item(blocks), found = items_with(sum > slot);
        if (found != 0) {
            const uint item = 31 - clz(found & -found);
            const uint row = (slot - value_in(sum - blocks, item)) * height;
            const uint from = value_in(start, item) + row, last = value_in(end, item);
            return (row_block){first + item, from, min(height, last - from)};
        }
        slot -= value_in(sum, MOERT_ITEMS - 1);
    }
    return (row_block){0, 0, 0};
}
#else
static inline row_block find_row_block(global const uint *ends, uint groups, uint rows, uint height,
                                       uint slot) {
    uint start = 0;
    for (uint g = 0; g < groups; g++) {
        const uint end = group_end(ends, g, start, rows),
                   blocks = (end - start + height - 1) / height;
        if (slot < blocks)
            return (row_block){g, start + slot * height, min(height, end - start - slot * height)};
        slot -= blocks;
        start = end;
    }
    return (row_block){0, 0, 0};
}
#endif

#endif
