/*
 * Block-scaled formats back to float32: x = (q * scale) * G (null = 1), over the tiles of kernels/quantize.cl.
 *
 * A work-group takes one row (ROW) or one row block of a group and `strip` columns, a multiple of 128, 16 at a time.
 *
 * Required: BLOCK (16, 32, 128), ELEMENT and E4M3 (number types, see formats.h), ELEMENT_BITS (4, 8), SCALE (0 E8M0,
 * 1 E4M3 with a global scale, 2 F32).
 * Grid: (rows or row blocks, strips). No local memory. Deterministic.
 */
#if !defined(BLOCK) || !defined(ELEMENT) || !defined(E4M3) || !defined(ELEMENT_BITS) || !defined(SCALE)
#error "BLOCK, ELEMENT, E4M3, ELEMENT_BITS and SCALE must be defined"
#endif
#include "formats.h"

/* The codes of columns [column, column + n) of row r of a tile. */
static inline uint16 load_codes(global const uchar *q, ulong q_bytes, int axis, int transposed, uint slot, place p,
                                uint r, int column, int n)
{
    if (axis == COLUMN) {
        const ulong line = ELEMENT_BITS == 4 ? slot * (BLOCK / 2) + r / 2 : p.row + r;
        const uint16 code = transposed ? load_bytes_apart(q + column * q_bytes + line, q_bytes, n)
                                       : load_bytes(q + line * q_bytes + column, n);
        return ELEMENT_BITS == 4 ? code >> (r % 2 * 4) & 0xF : code;
    }
    global const uchar *line = q + (p.row + r) * q_bytes;
#if ELEMENT_BITS == 4
    line += column / 2;
    const uint8 code = n >= VEC ? convert_uint8(vload8(0, line)) : load_bytes(line, (n + 1) / 2).lo;
    uint16 codes;
    codes.even = code & 0xF;
    codes.odd = code >> 4;
    return codes;
#else
    return load_bytes(line + column, n);
#endif
}

/* The scales of 16 columns: one (stride 0), or n at this stride. */
static inline vec load_scales(global const uchar *scale, ulong at, ulong stride, int n)
{
#if SCALE == 2
    global const float *p = (global const float *)scale + at;
    if (stride == 0)
        return p[0];
    float lane[VEC];
    for (int i = 0; i < VEC; i++)
        lane[i] = i < n ? p[i * stride] : 0.0f;
    return vload16(0, lane);
#else
    const uint16 code = stride == 0   ? (uint16)scale[at]
                        : stride == 1 ? load_bytes(scale + at, n)
                                      : load_bytes_apart(scale + at, stride, n);
    return SCALE == 1 ? decode(code, E4M3) : decode_e8m0(code);
#endif
}

KERNEL void dequantize(int axis, global const uint *ends, uint groups, uint rows, int columns, int strip,
                       global const uchar *q, ulong q_bytes, global const uchar *scale, ulong scales,
                       global const float *whole, int group_scales, int transposed, uint blocks, global float *x)
{
    const uint slot = get_group_id(0);
    const int first = get_group_id(1) * strip, last = min(columns, first + strip);
    const place p = find_place(ends, groups, rows, axis == ROW ? 1 : BLOCK, slot);
    global const uchar *all_scales = SCALES_OF(q, scale, columns);
    if (p.rows == 0 || (axis != ROW && slot >= blocks))
        return;
    for (uint r = 0; r < p.rows; r++) {
        const ulong line = axis == TILE ? (SCALE == 2 ? slot : p.row + r) : p.row + r;
        for (int c = first; c < last; c += VEC) {
            const int n = last - c;
            const ulong at = axis != COLUMN ? line * scales + c / BLOCK
                             : transposed   ? c * scales + slot
                                            : slot * scales + c;
            const vec s = load_scales(all_scales, at, axis != COLUMN ? 0 : transposed ? scales : 1, n);
            vec y = decode(load_codes(q, q_bytes, axis, transposed, slot, p, r, c, n), ELEMENT) * s;
            if (SCALE == 1 && whole != 0)
                y *= whole[group_scales ? p.group : 0];
            store_part(quiet(y), x + (ulong)(p.row + r) * columns + c, n);
        }
    }
}
