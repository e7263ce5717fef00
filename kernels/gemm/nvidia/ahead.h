/*
 * Included by wgmma.cl. Of operands in MXFP8, MXFP4 and NVFP4, which are exact in bf16: three
 * warps, which would have nothing to do, make it bf16 in global memory just ahead of the product
 * that reads it there.
 *
 * The groups are taken in the order of the tiles. Of each one every work-group decodes its share of
 * both operands and counts itself in ready[group]; the blocks of a group's tiles are asked for when
 * all have. Nobody waits in a circle, as decoding waits for nothing; but all work-groups must get a
 * compute unit while others wait: no more of them than units.
 *
 * Blocks lie along the terms. What a work-item decodes at a time:
 *
 *     along  lines of terms: 8 codes in each of a few units of 256, of which its warp has the
 *            others
 *     down   lines are terms: 8 lines of codes by 8 columns, within a block; of 4 bits a line holds
 *            the codes of two rows, the first in the low half of a byte
 *
 * The bits of a code, moved to the place of bf16's sign, low exponent bits and high mantissa bits,
 * are the number times 2^-120 (E4M3), 2^-112 (E5M2) or 2^-126 (E2M1), subnormal ones too; several
 * codes are moved at once. Products with that power of two and with the scale are exact; below
 * 2^-126 the second is rounded. NVFP4's global scales are not applied.
 *
 * A format's number is that of MOERT_FORMAT_TABLE (include/moert/formats.h); PLAIN is bf16 as it
 * is. Columns are multiples of 8, of lines of terms of four blocks.
 */
#define DECODERS     96 /* work-items */
#define BAR_DECODERS 3
#define BF16_NAN     0x7FC0u

enum { E4M3_E8M0, E5M2_E8M0, E2M1_E8M0, E2M1_E4M3 };

#define CODE_BITS(format) ((format) <= E5M2_E8M0 ? 8 : 4)
#define RUN_OF(format)    ((format) == E2M1_E4M3 ? 16 : 32) /* codes of a scale */
#define UNIT(format)                                                                               \
    ((format) == E4M3_E8M0 ? 247 : (format) == E5M2_E8M0 ? 239 : 253) /* bf16's exponent bits */

/* A factor, and where its numbers go. */
typedef struct quantized {
    global const uchar *codes, *scales;
    global uint4 *numbers;
} quantized;

/* A group's part of a factor: lines from `first` on, of which the blocks down the lines begin with
 * number `block`. */
typedef struct part {
    uint first, lines, columns, block;
} part;

/* ---- numbers ---- */

static inline uint permute_bytes(uint low, uint high, uint selector) {
    uint bytes;
    __asm__("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
    return bytes;
}

/* Two products of bf16 numbers. */
static inline uint multiply_pair(uint x, uint y) {
    uint product;
    __asm__("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(x), "r"(y), "r"(0x80008000u));
    return product;
}

/* The power of two that moved bits want, twice. */
static inline uint unit_pair(int format) {
    return UNIT(format) * 0x00800080u;
}

/* A scale as bf16, twice. */
static inline uint scale_pair(int format, uint code) {
    if (format == E2M1_E4M3) {
        const uint pair = ((code & 0x80) << 8 | (code & 0x7F) << 4) * 0x10001u;
        return (code & 0x7F) == 0x7F ? BF16_NAN * 0x10001u
                                     : multiply_pair(pair, unit_pair(E4M3_E8M0));
    }
    return (code == 0 ? 0x40u : code == 255 ? BF16_NAN : code << 7) * 0x10001u;
}

/* Bytes of the high and of the low halves of four numbers, as two pairs. */
static inline uint2 pair_up(uint high, uint low) {
    return (uint2)(permute_bytes(low, high, 0x5140), permute_bytes(low, high, 0x7362));
}

/* Puts infinities and NaN, which moved bits do not know, in their place. */
static inline uint2 mend_bytes(int format, uint codes, uint2 pairs) {
    uint mended[2] = {pairs.x, pairs.y};
    UNROLL_FOR(int i = 0; i < 4; i++) {
        const uint code = codes >> 8 * i & 0xFF, magnitude = code & 0x7F, shift = i % 2 * 16;
        const uint special =
            format == E5M2_E8M0 && magnitude == 0x7C ? (code & 0x80) << 8 | 0x7F80 : BF16_NAN;
        if (magnitude >= (format == E4M3_E8M0 ? 0x7Fu : 0x7Cu))
            mended[i / 2] = (mended[i / 2] & ~(0xFFFFu << shift)) | special << shift;
    }
    return (uint2)(mended[0], mended[1]);
}

/* Four codes of 8 bits in moved form. One more than the largest finite code flips the bit of the
 * sign. */
static inline uint2 move_bytes(int format, uint codes) {
    const uint right = format == E4M3_E8M0 ? 4 : 3,
               kept = format == E4M3_E8M0 ? 0x07070707u : 0x0F0F0F0Fu;
    const uint high = (codes & 0x80808080u) | (codes >> right & kept);
    const uint low = codes << (8 - right) & (format == E4M3_E8M0 ? 0xF0F0F0F0u : 0xE0E0E0E0u);
    const uint2 pairs = pair_up(high, low);
    if ((((codes + (format == E4M3_E8M0 ? 0x01010101u : 0x04040404u)) ^ codes) & 0x80808080u) != 0)
        return mend_bytes(format, codes, pairs);
    return pairs;
}

/* Eight codes of 4 bits that follow each other, in moved form: codes i and i + 4 are moved
 * together. */
static inline uint4 move_halves(uint codes) {
    const uint kept = 0x01C001C0u, sign = 0x80008000u;
    const uint a = (codes << 6 & kept) | (codes << 12 & sign),
               b = (codes << 2 & kept) | (codes << 8 & sign);
    const uint c = (codes >> 2 & kept) | (codes << 4 & sign),
               d = (codes >> 6 & kept) | (codes & sign);
    return (uint4)(permute_bytes(a, b, 0x5410), permute_bytes(c, d, 0x5410),
                   permute_bytes(a, b, 0x7632), permute_bytes(c, d, 0x7632));
}

/* Four codes of 4 bits in the low halves of bytes, in moved form. */
static inline uint2 move_low_halves(uint codes) {
    return pair_up((codes << 4 & 0x80808080u) | (codes >> 2 & 0x01010101u),
                   codes << 6 & 0xC0C0C0C0u);
}

static inline uint4 scaled(int format, uint4 moved, uint4 scales) {
    const uint unit = unit_pair(format);
    return (uint4)(multiply_pair(multiply_pair(moved.x, unit), scales.x),
                   multiply_pair(multiply_pair(moved.y, unit), scales.y),
                   multiply_pair(multiply_pair(moved.z, unit), scales.z),
                   multiply_pair(multiply_pair(moved.w, unit), scales.w));
}

/* ---- this work-group's share of a part ---- */

/* What another item of the warp has. */
static inline uint shuffle(uint x, uint lane) {
    uint theirs;
    __asm__ volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;"
                     : "=r"(theirs)
                     : "r"(x), "r"(lane));
    return theirs;
}

static inline uint decoder_number(void) {
    return get_group_id(0) * DECODERS + get_local_id(0) - 32;
}

/* What is loaded a turn ahead of its use; past the end whatever is there, as loads under conditions
 * would wait for each other. */
typedef struct batch {
    uint codes[16], scales[2];
} batch;

/* A warp's batches of a part in lines of terms: UNITS times 8 codes for each of its items. An item
 * has every 32nd word of their scales, WORDS of which belong to a unit. */
#define UNITS(format) (64 / CODE_BITS(format))
#define WORDS(format) (256 / RUN_OF(format) / 4)

INLINED batch load_along(int format, quantized x, ulong begin, uint number, uint eights) {
    const uint lane = get_local_id(0) % 32, words = eights / (RUN_OF(format) / 2);
    global const uint *scales = (global const uint *)x.scales + begin / (RUN_OF(format) / 2);
    batch b;
    UNROLL_FOR(int i = 0; i < UNITS(format); i++) {
        const ulong at = begin + min((number * UNITS(format) + i) * 32 + lane, eights - 1);
        if (CODE_BITS(format) == 8) {
            const uint2 two = ((global const uint2 *)x.codes)[at];
            b.codes[2 * i] = two.x;
            b.codes[2 * i + 1] = two.y;
        } else {
            b.codes[i] = ((global const uint *)x.codes)[at];
        }
    }
    UNROLL_FOR(int i = 0; i < (UNITS(format) * WORDS(format) + 31) / 32; i++)
        b.scales[i] =
            scales[min(number * UNITS(format) * WORDS(format) + i * 32 + lane, words - 1)];
    return b;
}

INLINED void decode_along(int format, quantized x, part p) {
    const ulong begin = (ulong)p.first * p.columns / 8;
    const uint eights = (ulong)p.lines * p.columns / 8,
               batches = (eights + 32 * UNITS(format) - 1) / (32 * UNITS(format));
    const uint lane = get_local_id(0) % 32, stride = get_num_groups(0) * DECODERS / 32;
    const uint from = lane / (32 / WORDS(format)), shift = lane / (8 / WORDS(format)) % 4 * 8;
    batch next = load_along(format, x, begin, decoder_number() / 32, eights);
    for (uint number = decoder_number() / 32; number < batches; number += stride) {
        const uint at = number * UNITS(format) * 32 + lane;
        global uint4 *to = x.numbers + begin + at;
        const batch b = next;
        next = load_along(format, x, begin, min(number + stride, batches - 1), eights);
        UNROLL_FOR(int i = 0; i < UNITS(format); i++) {
            const uint word = i * WORDS(format);
            const uint scale = shuffle(b.scales[word / 32], word % 32 + from) >> shift & 0xFF;
            const uint4 moved = CODE_BITS(format) == 8
                                    ? (uint4)(move_bytes(format, b.codes[2 * i]),
                                              move_bytes(format, b.codes[2 * i + 1]))
                                    : move_halves(b.codes[i]);
            if (at + i * 32 < eights)
                to[i * 32] = scaled(format, moved, (uint4)(scale_pair(format, scale)));
        }
    }
}

/* 8 lines of codes and, in two words, their scales; a block of 4 bits is whole. */
INLINED batch load_down(int format, quantized x, part p, uint unit, uint units) {
    const uint block = RUN_OF(format) * CODE_BITS(format) / 8, across = p.columns / 8,
               last = min(unit, units - 1);
    const uint step = last / across, column = last % across,
               line = CODE_BITS(format) == 8 ? p.first : p.block * block;
    const uint2 scales =
        ((global const uint2 *)x.scales)[(ulong)(p.block + step / (block / 8)) * across + column];
    batch b = {.scales = {scales.x, scales.y}};
    UNROLL_FOR(int i = 0; i < 8; i++) {
        const uint own = CODE_BITS(format) == 8 ? min(step * 8 + i, p.lines - 1) : step * 8 + i;
        const uint2 two = ((global const uint2 *)x.codes)[(ulong)(line + own) * across + column];
        b.codes[2 * i] = two.x;
        b.codes[2 * i + 1] = two.y;
    }
    return b;
}

INLINED void decode_down(int format, quantized x, part p) {
    const int bits = CODE_BITS(format), rows = 8 / bits; /* of a line */
    const uint across = p.columns / 8, stride = get_num_groups(0) * DECODERS;
    const uint units =
        (p.lines + RUN_OF(format) - 1) / RUN_OF(format) * (RUN_OF(format) / rows / 8) * across;
    batch next = load_down(format, x, p, decoder_number(), units);
    for (uint unit = decoder_number(); unit < units; unit += stride) {
        const uint row = unit / across * 8 * rows, column = unit % across;
        global uint4 *to = x.numbers + (ulong)(p.first + row) * across + column;
        const batch b = next;
        uint scales[4];
        next = load_down(format, x, p, unit + stride, units);
        UNROLL_FOR(int i = 0; i < 4; i++) {
            const uint two = b.scales[i / 2] >> i % 2 * 16;
            scales[i] = permute_bytes(scale_pair(format, two & 0xFF),
                                      scale_pair(format, two >> 8 & 0xFF), 0x5410);
        }
        UNROLL_FOR(int i = 0; i < 8 * rows; i++) {
            const uint low = b.codes[i / rows * 2] >> i % rows * 4,
                       high = b.codes[i / rows * 2 + 1] >> i % rows * 4;
            const uint4 moved = bits == 8
                                    ? (uint4)(move_bytes(format, low), move_bytes(format, high))
                                    : (uint4)(move_low_halves(low), move_low_halves(high));
            if (row + i < p.lines)
                to[i * across] =
                    scaled(format, moved, (uint4)(scales[0], scales[1], scales[2], scales[3]));
        }
    }
}

/* ---- groups ---- */

/* Makes what has been stored known to TMA, then counts this work-group. */
static inline void count_ready(global uint *ready) {
    __asm__ volatile("fence.acq_rel.gpu; fence.proxy.async;" ::: "memory");
    barrier_of(BAR_DECODERS, DECODERS);
    if (get_local_id(0) == 32)
        __asm__ volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(ready) : "memory");
}

/* Waits until all work-groups have decoded a group. */
static inline void await_ready(global const uint *ready) {
    while (acquire_global(ready) < get_num_groups(0))
        ;
    __asm__ volatile("fence.proxy.async;" ::: "memory");
}

#if B_FORMAT != PLAIN && ORIENTATION == FORWARD
#define ALONG_B 1
#else
#define ALONG_B 0
#endif

/* All groups, one after the other. */
INLINED void decode_ahead(shape s, quantized a, quantized b, local const uint *ends,
                          global uint *ready) {
    const uint lines_b = ORIENTATION == DGRAD ? s.terms
                         : GLU                ? 2 * s.columns
                                              : s.columns; /* of a weight */
    const uint columns_b = ORIENTATION == FORWARD ? s.terms : s.columns;
    uint blocks_a = 0, blocks_b = 0;
    for (uint g = s.skip; g < s.groups; g++) {
        const uint first = g > 0 ? ends[g - 1] : 0, rows = ends[g] - first;
        if (ORIENTATION == WGRAD && rows > 0) {
            if (A_FORMAT != PLAIN)
                decode_down(A_FORMAT, a, (part){first, rows, s.lines, blocks_a});
            if (B_FORMAT != PLAIN)
                decode_down(B_FORMAT, b, (part){first, rows, s.columns, blocks_b});
            blocks_a += (rows + RUN_OF(A_FORMAT) - 1) / RUN_OF(A_FORMAT);
            blocks_b += (rows + RUN_OF(B_FORMAT) - 1) / RUN_OF(B_FORMAT);
        } else if (rows > 0) {
            if (A_FORMAT != PLAIN)
                decode_along(A_FORMAT, a, (part){first, rows, s.terms, 0});
            if (ALONG_B)
                decode_along(B_FORMAT, b, (part){g * lines_b, lines_b, columns_b, 0});
            else if (B_FORMAT != PLAIN)
                decode_down(
                    B_FORMAT, b,
                    (part){g * lines_b, lines_b, columns_b, g * (lines_b / RUN_OF(B_FORMAT))});
        }
        count_ready(ready + g);
    }
}
