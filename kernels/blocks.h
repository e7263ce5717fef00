/*
 * Included after formats.h by the families that read block-scaled matrices (pictures in quantize.cl), 16 values at once.
 *
 * Required: BLOCK (16, 32, 128), ELEMENT and E4M3 (number types, see formats.h), ELEMENT_BITS (4, 8), SCALE (0 E8M0,
 * 1 E4M3 with a global scale, 2 F32).
 */
typedef struct blocks {
    global const uchar *q, *scale;
    ulong q_bytes, scales; /* of a line */
    int axis, transposed;
} blocks;

/* Where a row lies: it is row r of row block `slot`, counted over all groups. */
typedef struct block_row {
    uint row, slot, r;
} block_row;

static inline uint16 load_codes(const blocks *b, block_row at, int column, int n)
{
    if (b->axis == COLUMN) {
        const ulong line = ELEMENT_BITS == 4 ? at.slot * (BLOCK / 2) + at.r / 2 : at.row;
        const uint16 code = b->transposed ? load_bytes_apart(b->q + column * b->q_bytes + line, b->q_bytes, n)
                                          : load_bytes(b->q + line * b->q_bytes + column, n);
        return ELEMENT_BITS == 4 ? code >> (at.r % 2 * 4) & 0xF : code;
    }
    global const uchar *line = b->q + at.row * b->q_bytes;
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

/* Columns [column, column + n) of a row, n from 1 to 16 or more, without the global scale; lanes past them hold
 * anything. `column` is a multiple of 16. */
static inline vec load_values(const blocks *b, block_row at, int column, int n)
{
    const ulong line = SCALE == 2 && b->axis == TILE ? at.slot : at.row;
    const ulong scale = b->axis != COLUMN ? line * b->scales + column / BLOCK
                        : b->transposed   ? column * b->scales + at.slot
                                          : at.slot * b->scales + column;
    const ulong stride = b->axis != COLUMN ? 0 : b->transposed ? b->scales : 1;
    return decode(load_codes(b, at, column, n), ELEMENT) * load_scales(b->scale, scale, stride, n);
}
