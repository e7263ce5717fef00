/*
 * Included by the kernels that read block-scaled matrices, one vec of values at a time. quantize.cl
 * has pictures of the layouts.
 *
 * Required: BLOCK (16, 32, 128), ELEMENT and E4M3 (element types, see formats.h), ELEMENT_BITS (4,
 * 8), SCALE (0 E8M0, 1 E4M3 with a global scale, 2 F32).
 */
#if !defined(BLOCK) || !defined(ELEMENT) || !defined(E4M3) || !defined(ELEMENT_BITS) ||            \
    !defined(SCALE)
#error "BLOCK, ELEMENT, E4M3, ELEMENT_BITS and SCALE must be defined"
#endif
#include "lib/formats.h"

typedef struct blocks {
    global const uchar *q, *scale;
    ulong q_bytes, scales; /* bytes of a line of q, scales of a line of scale */
    int axis, transposed;
} blocks;

/* The position of a row in its matrix: row `row`, which is row r of row block `slot`, counted over
 * all groups. */
typedef struct block_row {
    uint row, slot, r;
} block_row;

static inline uvec load_payload(const blocks *b, block_row at, int column, int n) {
    if (b->axis == COLUMN) {
        const ulong line = ELEMENT_BITS == 4 ? at.slot * (BLOCK / 2) + at.r / 2 : at.row;
        const uvec bytes = b->transposed
                               ? load_bytes_apart(b->q + column * b->q_bytes + line, b->q_bytes, n)
                               : load_bytes(b->q + line * b->q_bytes + column, n);
        return ELEMENT_BITS == 4 ? bytes >> (at.r % 2 * 4) & 0xF : bytes;
    }
    global const uchar *line = b->q + at.row * b->q_bytes;
#if ELEMENT_BITS == 4 && MOERT_ITEMS == 1
    line += column / 2;
    const uint8 bytes = n >= VEC ? convert_uint8(LOAD_VECTOR(global, uchar, 8, line))
                                 : load_bytes(line, (n + 1) / 2).lo;
    uvec elements;
    elements.even = bytes & 0xF;
    elements.odd = bytes >> 4;
    return elements;
#elif ELEMENT_BITS == 4
    line += (column + part_start()) / 2;
    n -= part_start();
    if (n > 2 && WHOLE(uchar2, line)) {
        const uchar2 joined = *(global const uchar2 *)line;
        const uint2 pairs = (uint2)(joined.x, joined.y); /* clang 18 fails on convert_uint2 */
        return (uvec)(pairs.x & 0xF, pairs.x >> 4, pairs.y & 0xF, pairs.y >> 4);
    }
    const uint first = n > 0 ? line[0] : 0, second = n > 2 ? line[1] : 0;
    return (uvec)(first & 0xF, first >> 4, second & 0xF, second >> 4);
#else
    return load_bytes(line + column, n);
#endif
}

/* The stored scales of a step's columns: with stride 0 one scale for all columns of this work-item,
 * else n scales at that stride. */
static inline uvec load_scales(global const uchar *scale, ulong at, ulong stride, int n) {
#if SCALE == 2
    global const uint *p = (global const uint *)scale + at;
    if (stride == 0)
        return p[0];
    uint lane[PART];
    for (int i = 0; i < PART; i++)
        lane[i] = part_start() + i < n ? p[(part_start() + i) * stride] : 0;
    return vload_part(0, lane);
#else
    return stride == 0   ? (uvec)scale[at]
           : stride == 1 ? load_bytes(scale + at, n)
                         : load_bytes_apart(scale + at, stride, n);
#endif
}

typedef struct quantized {
    uvec code, scale;
} quantized;

/* Loads columns [column, column + n) of a row, at most one step; lanes beyond them are unspecified.
 * `column` is a multiple of 16, and column + n is at least 1. */
static inline quantized load_quantized(const blocks *b, block_row at, int column, int n) {
    const ulong line = SCALE == 2 && b->axis == TILE ? at.slot : at.row;
    const int own = column + min(part_start(), n - 1);
    const ulong scale = b->axis != COLUMN ? line * b->scales + own / BLOCK
                        : b->transposed   ? column * b->scales + at.slot
                                          : at.slot * b->scales + column;
    const ulong stride = b->axis != COLUMN ? 0 : b->transposed ? b->scales : 1;
    return (quantized){load_payload(b, at, column, n), load_scales(b->scale, scale, stride, n)};
}

/* The values of stored scales; the value of a NaN may be any NaN. */
static inline vec scales_of(uvec scale) {
#if defined(HAS_FP8) && SCALE == 1
    return unpack_e4m3(as_uint(convert_byte_vec(scale)));
#else
    return SCALE == 2 ? as_vec(scale) : SCALE == 1 ? decode(scale, E4M3) : decode_e8m0(scale);
#endif
}

/* The matrix values, without the global scale. */
static inline vec values_of(quantized x) {
    return decode(x.code, ELEMENT) * scales_of(x.scale);
}
