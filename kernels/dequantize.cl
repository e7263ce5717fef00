/*
 * Block-scaled formats back to numbers: x = (q * scale) * G (null = 1), over the tiles of kernels/quantize.cl, rounded to
 * x's type (formats.h) at last.
 *
 * With WIDE, for GPUs, dequantize_row makes bf16, and an item has 8 columns at a time: columns are multiples of 8, lines of
 * 8 codes. An item's floats would be two stores, which do not fill what neighbours write together.
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
#if MOERT_ITEMS == 1
        y = quiet(y);
#else
        if (isnan(y.x + y.y + y.z + y.w)) /* seldom */
            y = quiet(y);
#endif
        store_as(y, x, type, (ulong)(p.row + r) * columns + c, r < p.rows ? last - c : 0);
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
#ifdef WIDE
#define UNIT  8
#define UNITS 4 /* whose loads are under way together */

static inline vec decode_four(uint codes)
{
#if defined(HAS_FP8) && ELEMENT_BITS == 8
    return LARGEST == 448.0f ? unpack_e4m3(codes) : unpack_e5m2(codes);
#else
    return decode((uvec)codes >> ((uvec)(0, 1, 2, 3) * ELEMENT_BITS) & ((1u << ELEMENT_BITS) - 1), ELEMENT);
#endif
}

/* An item's 8 numbers, in a row of the matrix. */
static inline void store_eight(vec low, vec high, global ushort *x)
{
    const vec sums = low + high;
    const bool has_nan = isnan(sums.x + sums.y + sums.z + sums.w); /* or infinities */
#ifdef HAS_FP8
    if (!has_nan) {
        *(global uint4 *)x = (uint4)(pack_bf16(low.x, low.y), pack_bf16(low.z, low.w), pack_bf16(high.x, high.y),
                                     pack_bf16(high.z, high.w));
        return;
    }
#endif
    store_shorts(encode(low, NUMBER_BF16), x - part_start(), PART + part_start());
    store_shorts(encode(high, NUMBER_BF16), x + PART - part_start(), PART + part_start());
}

KERNEL void dequantize_row(ARGUMENTS)
{
    const uint row = get_group_id(0);
    const int first = get_group_id(1) * strip, last = min(columns, first + strip);
    const place p = find_row(ends, groups, rows, SCALE == 1 && group_scales, row);
    global const uchar *line = q + row * q_bytes, *from = SCALES_OF(q, scale, columns);
    const float all = SCALE == 1 && whole != 0 ? whole[group_scales ? p.group : 0] : 1.0f;
    if (p.rows == 0)
        return;
    for (int c = first + item_index() * UNIT; c < last; c += UNITS * MOERT_ITEMS * UNIT) {
        uint2 codes[UNITS];
        uint scales_here[UNITS];
        UNROLL for (int i = 0; i < UNITS; i++) {
            const int own = min(c + i * MOERT_ITEMS * UNIT, last - UNIT);
            codes[i] = ELEMENT_BITS == 8 ? *(global const uint2 *)(line + own)
                                         : (uint2)(*(global const uint *)(line + own / 2), 0);
            scales_here[i] = load_scales(from, row * scales + own / BLOCK, 0, PART).x;
        }
        UNROLL for (int i = 0; i < UNITS; i++) {
            const int own = c + i * MOERT_ITEMS * UNIT;
            const float s = scales_of((uvec)scales_here[i]).x;
            vec low = decode_four(codes[i].x) * s;
            vec high = decode_four(ELEMENT_BITS == 8 ? codes[i].y : codes[i].x >> 16) * s;
            if (SCALE == 1 && whole != 0) {
                low *= all;
                high *= all;
            }
            if (own < last)
                store_eight(low, high, (global ushort *)x + (ulong)row * columns + own);
        }
    }
}
#else
DEQUANTIZE(row, ROW, 1)
#endif
DEQUANTIZE(column, COLUMN, CREW)
DEQUANTIZE(tile, TILE, CREW)
