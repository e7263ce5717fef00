/*
 * Block-scaled formats back to numbers: x = (q * scale) * G (null = 1), over the tiles of kernels/quantize.cl, rounded to
 * x's type (formats.h) at last.
 *
 * A team takes one row (ROW) or, on GPUs with its crew, one row block of a group, and `strip` columns, a multiple of 128.
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

#define ARGUMENTS                                                                                                      \
    global const uint *ends, uint groups, uint rows, int columns, int strip, global const uchar *q, ulong q_bytes,     \
        global const uchar *scale, ulong scales, global const float *whole, int group_scales, uint blocks_most,        \
        global void *x, int type
#define AHEAD (MOERT_ITEMS == 1 ? 1 : 8) /* parts of a row, or rows of a step, whose loads are under way together */

/* Parts from `left` on, or of rows from `top` on. */
INLINED void dequantize_parts(const blocks *b, place p, uint slot, uint top, int left, int last, int columns, float all,
                              bool scaled, global void *x, int type)
{
    const int across = b->axis == ROW ? AHEAD : 1;
    coded own[AHEAD];
    UNROLL_ON_GPU for (int i = 0; i < AHEAD; i++) { /* whatever there is: loads under conditions would wait for each other */
        const uint r = min(top + i / across, p.rows - 1);
        const int c = left + i % across * VEC;
        own[i] = load_coded(b, (block_row){p.row + r, slot, r}, c, last - c);
    }
    UNROLL_ON_GPU for (int i = 0; i < AHEAD; i++) {
        const uint r = top + i / across;
        const int c = left + i % across * VEC;
        vec y = values_of(own[i]);
        if (SCALE == 1 && scaled)
            y *= all;
        store_as(quiet(y), x, type, (ulong)(p.row + r) * columns + c, r < p.rows ? last - c : 0);
    }
}

INLINED void dequantize(int axis, ARGUMENTS)
{
    const uint slot = get_group_id(0);
    const int first = get_group_id(1) * strip, last = min(columns, first + strip);
    const place p = axis == ROW ? find_row(ends, groups, rows, SCALE == 1 && group_scales, slot)
                                : find_place(ends, groups, rows, BLOCK, slot);
    const blocks b = {q, SCALES_OF(q, scale, columns), q_bytes, scales, axis, TRANSPOSED};
    if (p.rows == 0 || (axis != ROW && slot >= blocks_most))
        return;
    const float all = SCALE == 1 && whole != 0 ? whole[group_scales ? p.group : 0] : 1.0f;
    if (axis == ROW) {
        for (int c = first; c < last; c += AHEAD * VEC)
            dequantize_parts(&b, p, slot, 0, c, last, columns, all, whole != 0, x, type);
        return;
    }
#if MOERT_ITEMS == 1
    for (uint r = 0; r < p.rows; r++)
        for (int c = first; c < last; c += VEC)
            dequantize_parts(&b, p, slot, r, c, last, columns, all, whole != 0, x, type);
#else /* the strip is a step */
    dequantize_parts(&b, p, slot, team_index() * AHEAD, first, last, columns, all, whole != 0, x, type);
#endif
}

#define DEQUANTIZE(name, axis, crew)                                                                                   \
    KERNEL_OF(crew) void dequantize_##name(ARGUMENTS)                                                                           \
    {                                                                                                                  \
        dequantize(axis, ends, groups, rows, columns, strip, q, q_bytes, scale, scales, whole, group_scales,           \
                   blocks_most, x, type);                                                                  \
    }
#define CREW (MOERT_ITEMS == 1 ? 1 : BLOCK / AHEAD)
DEQUANTIZE(row, ROW, 1)
DEQUANTIZE(column, COLUMN, CREW)
DEQUANTIZE(tile, TILE, CREW)
