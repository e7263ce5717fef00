/*
 * Decodes elements of MXFP8, MXFP4 and NVFP4 to bf16, several elements by one operation (ahead.h).
 *
 * The bits of an element, moved to bf16's sign, low exponent bits and high mantissa bits, are its
 * value times 2^-120 (E4M3), 2^-112 (E5M2) or 2^-126 (E2M1), for subnormal values also. One
 * operation moves several elements. Multiplying by 2^120, 2^112 or 2^126 is exact. Multiplying by
 * the scale is also exact, except that products below 2^-126 are rounded. NVFP4's global scales are
 * not applied.
 *
 * Formats are numbered as in MOERT_FORMAT_TABLE (include/moert/formats.h).
 */
#define BF16_NAN 0x7FC0u

enum { E4M3_E8M0, E5M2_E8M0, E2M1_E8M0, E2M1_E4M3 };

#define CODE_BITS(format) ((format) <= E5M2_E8M0 ? 8 : 4)
#define RUN_OF(format)    ((format) == E2M1_E4M3 ? 16 : 32) /* elements that share a scale */
#define UNIT(format)                                                                               \
    ((format) == E4M3_E8M0 ? 247                                                                   \
     : (format) == E5M2_E8M0                                                                       \
         ? 239                                                                                     \
         : 253) /* exponent bits in bf16 of the power of two that moved bits are multiplied by */

static inline uint permute_bytes(uint low, uint high, uint selector) {
    uint bytes;
    __asm__("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
    return bytes;
}

/* The products of two pairs of bf16 values. */
static inline uint multiply_pair(uint x, uint y) {
    uint product;
    __asm__("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(x), "r"(y), "r"(0x80008000u));
    return product;
}

/* The power of two that moved bits are multiplied by, in both halves of a word. */
static inline uint unit_pair(int format) {
    return UNIT(format) * 0x00800080u;
}

/* A scale as bf16, in both halves of a word. */
static inline uint scale_pair(int format, uint code) {
    if (format == E2M1_E4M3) {
        const uint pair = ((code & 0x80) << 8 | (code & 0x7F) << 4) * 0x10001u;
        return (code & 0x7F) == 0x7F ? BF16_NAN * 0x10001u
                                     : multiply_pair(pair, unit_pair(E4M3_E8M0));
    }
    return (code == 0 ? 0x40u : code == 255 ? BF16_NAN : code << 7) * 0x10001u;
}

/* Combines the bytes of the high and of the low halves of four values into two pairs. */
static inline uint2 pair_up(uint high, uint low) {
    return (uint2)(permute_bytes(low, high, 0x5140), permute_bytes(low, high, 0x7362));
}

/* Replaces infinities and NaN, which moving bits does not convert. */
static inline uint2 fix_specials(int format, uint payload, uint2 pairs) {
    uint fixed[2] = {pairs.x, pairs.y};
    UNROLL_FOR(int i = 0; i < 4; i++) {
        const uint code = payload >> 8 * i & 0xFF, magnitude = code & 0x7F, shift = i % 2 * 16;
        const uint special =
            format == E5M2_E8M0 && magnitude == 0x7C ? (code & 0x80) << 8 | 0x7F80 : BF16_NAN;
        if (magnitude >= (format == E4M3_E8M0 ? 0x7Fu : 0x7Cu))
            fixed[i / 2] = (fixed[i / 2] & ~(0xFFFFu << shift)) | special << shift;
    }
    return (uint2)(fixed[0], fixed[1]);
}

/* Moves four elements of 8 bits. Infinities and NaNs are detected by adding a constant to the bits:
 * only theirs carry into the sign bit. */
static inline uint2 move_bytes(int format, uint payload) {
    const uint right = format == E4M3_E8M0 ? 4 : 3,
               kept = format == E4M3_E8M0 ? 0x07070707u : 0x0F0F0F0Fu;
    const uint high = (payload & 0x80808080u) | (payload >> right & kept);
    const uint low = payload << (8 - right) & (format == E4M3_E8M0 ? 0xF0F0F0F0u : 0xE0E0E0E0u);
    const uint2 pairs = pair_up(high, low);
    if ((((payload + (format == E4M3_E8M0 ? 0x01010101u : 0x04040404u)) ^ payload) & 0x80808080u) !=
        0)
        return fix_specials(format, payload, pairs);
    return pairs;
}

/* Moves eight consecutive elements of 4 bits; elements i and i + 4 are moved together. */
static inline uint4 move_halves(uint payload) {
    const uint kept = 0x01C001C0u, sign = 0x80008000u;
    const uint a = (payload << 6 & kept) | (payload << 12 & sign),
               b = (payload << 2 & kept) | (payload << 8 & sign);
    const uint c = (payload >> 2 & kept) | (payload << 4 & sign),
               d = (payload >> 6 & kept) | (payload & sign);
    return (uint4)(permute_bytes(a, b, 0x5410), permute_bytes(c, d, 0x5410),
                   permute_bytes(a, b, 0x7632), permute_bytes(c, d, 0x7632));
}

/* Moves the bits of four E2M1 elements to their positions in bf16. The elements are the low halves
 * of the bytes of `payload`. */
static inline uint2 move_low_halves(uint payload) {
    return pair_up((payload << 4 & 0x80808080u) | (payload >> 2 & 0x01010101u),
                   payload << 6 & 0xC0C0C0C0u);
}

static inline uint4 scaled(int format, uint4 moved, uint4 scales) {
    const uint unit = unit_pair(format);
    return (uint4)(multiply_pair(multiply_pair(moved.x, unit), scales.x),
                   multiply_pair(multiply_pair(moved.y, unit), scales.y),
                   multiply_pair(multiply_pair(moved.z, unit), scales.z),
                   multiply_pair(multiply_pair(moved.w, unit), scales.w));
}
