/*
 * Block-scaled formats back to numbers: x = (q * scale) * G (null = 1), over the tiles of kernels/quantize.cl, rounded to
 * x's type (formats.h) at last.
 *
 * A team takes one row (ROW) or one row block of a group and `strip` columns, a multiple of 128.
 *
 * Required: BLOCK (16, 32, 128), ELEMENT and E4M3 (number types, see formats.h), ELEMENT_BITS (4, 8), SCALE (0 E8M0,
 * 1 E4M3 with a global scale, 2 F32).
 * Grid: (rows or row blocks, strips). No local memory. Deterministic.
 */
#if !defined(BLOCK) || !defined(ELEMENT) || !defined(E4M3) || !defined(ELEMENT_BITS) || !defined(SCALE)
#error "BLOCK, ELEMENT, E4M3, ELEMENT_BITS and SCALE must be defined"
#endif
#include "formats.h"
#include "blocks.h"

KERNEL void dequantize(int axis, global const uint *ends, uint groups, uint rows, int columns, int strip,
                       global const uchar *q, ulong q_bytes, global const uchar *scale, ulong scales,
                       global const float *whole, int group_scales, int transposed, uint blocks_most, global void *x,
                       int type)
{
    const uint slot = get_group_id(0);
    const int first = get_group_id(1) * strip, last = min(columns, first + strip);
    const place p = find_place(ends, groups, rows, axis == ROW ? 1 : BLOCK, slot);
    const blocks b = {q, SCALES_OF(q, scale, columns), q_bytes, scales, axis, transposed};
    if (p.rows == 0 || (axis != ROW && slot >= blocks_most))
        return;
    for (uint r = 0; r < p.rows; r++)
        for (int c = first; c < last; c += BATCH * VEC) {
            vec y[BATCH];
            UNROLL for (int i = 0; i < BATCH; i++)
                y[i] = c + i * VEC < last
                           ? load_values(&b, (block_row){p.row + r, slot, r}, c + i * VEC, last - c - i * VEC)
                           : 0.0f;
            UNROLL for (int i = 0; i < BATCH; i++) {
                if (SCALE == 1 && whole != 0)
                    y[i] *= whole[group_scales ? p.group : 0];
                if (c + i * VEC < last)
                    store_as(quiet(y[i]), x, type, (ulong)(p.row + r) * columns + c + i * VEC, last - c - i * VEC);
            }
        }
}
