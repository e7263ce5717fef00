/*
 * Dequantizes MX and NV formats to bf16 on GPUs, before a GEMM on tensor cores: x = element *
 * scale, without NVFP4's global scale. These kernels do the work of kernels/quant/dequantize.cl for
 * whole blocks only, with wide loads and stores. Values below 2^-126 are rounded.
 *
 *   decode_along  blocks along rows: a work-item decodes 8 consecutive elements with one scale
 *   decode_down   blocks of BLOCK rows (moert/formats.h, COLUMN): a work-item decodes 8 columns of
 *                 a block with their 8 scales. A byte of 4-bit elements holds rows 2 r and 2 r + 1.
 *
 * The number of columns is a multiple of 8 in decode_down, of BLOCK in decode_along. Groups have
 * whole blocks, so blocks are contiguous. Required: FORMAT (0 to 3 of MOERT_FORMAT_TABLE,
 * include/moert/formats.h). Grids: decode_along (units of 8 elements / (ITEMS * AHEAD)),
 * decode_down (columns / 8 / ITEMS, blocks), rounded up. No local memory. Deterministic.
 */
#ifndef FORMAT
#error "FORMAT must be defined"
#endif

#include "args/quant.h"

enum { E4M3_E8M0, E5M2_E8M0, E2M1_E8M0, E2M1_E4M3 };
#define ROW_GROUPS MOERT_DECODE_ROW_GROUPS
#define ITEMS      MOERT_DECODE_ITEMS
#define AHEAD      MOERT_DECODE_AHEAD

#define BITS     (FORMAT <= E5M2_E8M0 ? 8 : 4)
#define BLOCK    (FORMAT == E2M1_E4M3 ? 16 : 32)
#define BF16_NAN 0x7FC00000u

#if MOERT_ITEMS != 32
#error "decode_gpu.cl has only a GPU form"
#endif

/* The value of one element. The element's bits, moved to their place in a float32, are the value
 * divided by a power of two, for subnormal values as well. */
static inline float decode_one(int format, uint code) {
    const uint magnitude = code & 0x7F;
    if (format >= E2M1_E8M0)
        return as_float((code & 8) << 28 | (code & 7) << 22) * 0x1p126f;
    if (format == E4M3_E8M0)
        return magnitude == 0x7F ? as_float(BF16_NAN)
                                 : as_float((code & 0x80) << 24 | magnitude << 20) * 0x1p120f;
    return magnitude >= 0x7C
               ? as_float((code & 0x80) << 24 | (magnitude == 0x7C ? 0x7F800000u : BF16_NAN))
               : as_float((code & 0x80) << 24 | magnitude << 21) * 0x1p112f;
}

static inline float scale_of(uint code) {
    if (FORMAT == E2M1_E4M3)
        return decode_one(E4M3_E8M0, code);
    return as_float(code == 0 ? 0x00400000u : code == 255 ? BF16_NAN : code << 23);
}

/* Rounds to bf16, to nearest even; the result is in the high half. */
static inline uint round_one(float x) {
    const uint bits = as_uint(x);
    return isnan(x) ? BF16_NAN : bits + 0x7FFF + (bits >> 16 & 1);
}

static inline uint round_two(float low, float high) {
    return round_one(low) >> 16 | (round_one(high) & 0xFFFF0000u);
}

static inline uint4 round_eight(const float x[8]) {
    return (uint4)(round_two(x[0], x[1]), round_two(x[2], x[3]), round_two(x[4], x[5]),
                   round_two(x[6], x[7]));
}

static inline uint group_item(void) {
    return get_local_id(1) * 32 + get_local_id(0);
}

KERNEL_OF(ROW_GROUPS)
void decode_along(global const uchar *q, global const uchar *scale, ulong units, global uint4 *x) {
    const ulong first = (ulong)get_group_id(0) * (ITEMS * AHEAD) + group_item();
    uint2 payload[AHEAD];
    uint scales[AHEAD];
    /* past the end, the last unit is loaded again: conditional loads would wait for each other */
    UNROLL_FOR(int i = 0; i < AHEAD; i++) {
        const ulong u = min(first + i * ITEMS, units - 1);
        payload[i] =
            BITS == 8 ? ((global const uint2 *)q)[u] : (uint2)(((global const uint *)q)[u], 0);
        scales[i] = scale[u * 8 / BLOCK];
    }
    UNROLL_FOR(int i = 0; i < AHEAD; i++) {
        const float s = scale_of(scales[i]);
        float v[8];
        UNROLL_FOR(int j = 0; j < 8; j++) {
            const uint word = BITS == 8 && j > 3 ? payload[i].y : payload[i].x;
            v[j] = decode_one(FORMAT, word >> j * BITS % 32 & ((1 << BITS) - 1)) * s;
        }
        if (first + i * ITEMS < units)
            x[first + i * ITEMS] = round_eight(v);
    }
}

/* 8 columns of a row: `half_row` (0, 1) selects the row of a pair with 4-bit elements. */
static inline uint4 decode_eight(uint2 payload, const float s[8], int half_row) {
    float v[8];
    UNROLL_FOR(int j = 0; j < 8; j++)
        v[j] = decode_one(FORMAT, (j > 3 ? payload.y : payload.x) >> (j * 8 % 32 + half_row * 4) &
                                      ((1 << BITS) - 1)) *
               s[j];
    return round_eight(v);
}

KERNEL_OF(ROW_GROUPS)
void decode_down(global const uchar *q, global const uchar *scale, uint columns, global uint4 *x) {
    enum {
        LINES = BLOCK * BITS / 8,
        PER_LINE = 8 / BITS
    }; /* lines of payload in a block; rows in a line */
    const uint units = columns / 8, unit = get_group_id(0) * ITEMS + group_item();
    const ulong block = get_group_id(1);
    global const uint2 *from = (global const uint2 *)q + block * LINES * units + unit;
    global uint4 *to = x + block * BLOCK * units + unit;
    float s[8];
    if (unit >= units)
        return;
    const uint2 scales = ((global const uint2 *)scale)[block * units + unit];
    UNROLL_FOR(int j = 0; j < 8; j++)
        s[j] = scale_of((j > 3 ? scales.y : scales.x) >> j * 8 % 32 & 0xFF);
    for (int line = 0; line < LINES; line += AHEAD) {
        uint2 payload[AHEAD];
        UNROLL_FOR(int i = 0; i < AHEAD; i++)
            payload[i] = from[(line + i) * units];
        UNROLL_FOR(int i = 0; i < AHEAD; i++)
            UNROLL_FOR(int half_row = 0; half_row < PER_LINE; half_row++)
                to[((line + i) * PER_LINE + half_row) * units] =
                    decode_eight(payload[i], s, half_row);
    }
}
