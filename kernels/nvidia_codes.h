/*
 * Included by nvidia_codes.cl: 64 codes of a thread become bf16 numbers in the swizzled form that tensor cores read: of
 * a row of terms here, of other columns in nvidia_codes_turned.h.
 *
 * The bits of a code, moved to the place of bf16's sign, low exponent bits and high mantissa bits, are the number times
 * 2^-120 (E4M3), 2^-112 (E5M2) or 2^-126 (E2M1), subnormal ones too; four codes are moved at once. A product with that
 * power of two and the scale, as one factor, is exact. Where bf16 has no such factor (E8M0 scales above LARGEST_SCALE, NaN
 * among them), a warp multiplies twice; NVFP4's factors are 2^-9 of that, and sums get it back (lift_sums).
 *
 * Codes that are NaN or infinite, which this does not know, are found by a carry: one more than the largest finite code
 * flips the bit of the sign. They are put right after.
 *
 * A format's number is that of MOERT_FORMAT_TABLE (include/moert/formats.h); PLAIN is bf16 that needs no decoding.
 */
enum { E4M3_E8M0, E5M2_E8M0, E2M1_E8M0, E2M1_E4M3, PLAIN };

#define CODE_BITS(format)  ((format) <= E5M2_E8M0 ? 8 : 4)
#define SCALE_RUN(format)  ((format) == E2M1_E4M3 ? 16 : 32) /* codes of a scale */
#define ROW_BYTES(format)  (64 * CODE_BITS(format) / 8)
#define LARGEST_SCALE(format) (381 - UNIT(format))
#define UNIT(format)       ((format) == E4M3_E8M0 ? 247 : (format) == E5M2_E8M0 ? 239 : 253) /* bf16's exponent bits */
#define LIFT(format)       ((format) == E2M1_E4M3 ? 512.0f : 1.0f)
#define BF16_NAN           0x7FC0u

static inline bool all_of_warp(bool x)
{
    uint all;
    __asm__ volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; vote.sync.all.pred q, p, 0xffffffff; selp.u32 %0, 1, 0, q; }"
                     : "=r"(all)
                     : "r"((uint)x));
    return all != 0;
}

static inline uint permute_bytes(uint low, uint high, uint selector)
{
    uint bytes;
    __asm__("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(selector));
    return bytes;
}

/* Two products of bf16 numbers. */
static inline uint multiply_pair(uint x, uint y)
{
    uint product;
    __asm__("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(x), "r"(y), "r"(0x80008000u));
    return product;
}

/* The power of two with these exponent bits, twice. */
static inline uint power_pair(uint exponent)
{
    return exponent << 7 | exponent << 23;
}

/* A scale as bf16, twice. */
static inline uint scale_pair(int format, uint code)
{
    uint pair;
    if (format == E2M1_E4M3) {
        const uint x = (code & 0x80) << 8 | (code & 0x7F) << 4;
        pair = multiply_pair(x | x << 16, power_pair(UNIT(E4M3_E8M0)));
        return (code & 0x7F) == 0x7F ? BF16_NAN * 0x10001u : pair;
    }
    return (code == 0 ? 0x40u : code == 255 ? BF16_NAN : code << 7) * 0x10001u;
}

/* A scale and the power of two for moved bits in one; an E8M0 scale is at most LARGEST_SCALE. */
static inline uint factor_pair(int format, uint code)
{
    if (format == E2M1_E4M3)
        return multiply_pair(scale_pair(format, code), power_pair(UNIT(format) - 9));
    return (code + UNIT(format) - 127) * 0x00800080u;
}

/* Four codes of 8 bits in moved form: the first two and the other two. */
static inline uint2 move_bytes(int format, uint codes)
{
    const uint right = format == E4M3_E8M0 ? 4 : 3, kept = format == E4M3_E8M0 ? 0x07070707u : 0x0F0F0F0Fu;
    const uint high = (codes & 0x80808080u) | (codes >> right & kept);
    const uint low = codes << (8 - right) & (format == E4M3_E8M0 ? 0xF0F0F0F0u : 0xE0E0E0E0u);
    return (uint2)(permute_bytes(low, high, 0x5140), permute_bytes(low, high, 0x7362));
}

/* Eight codes of 4 bits in moved form: codes i and i + 4 are moved together, then, unless both factors are left in that
 * order, brought side by side. */
static inline uint4 move_halves(uint codes, bool as_moved)
{
    const uint kept = 0x01C001C0u, sign = 0x80008000u;
    const uint a = (codes << 6 & kept) | (codes << 12 & sign), b = (codes << 2 & kept) | (codes << 8 & sign);
    const uint c = (codes >> 2 & kept) | (codes << 4 & sign), d = (codes >> 6 & kept) | (codes & sign);
    if (as_moved)
        return (uint4)(a, b, c, d);
    return (uint4)(permute_bytes(a, b, 0x5410), permute_bytes(c, d, 0x5410), permute_bytes(a, b, 0x7632),
                   permute_bytes(c, d, 0x7632));
}

static inline uint4 multiply_pairs(uint4 x, uint y)
{
    return (uint4)(multiply_pair(x.x, y), multiply_pair(x.y, y), multiply_pair(x.z, y), multiply_pair(x.w, y));
}

static inline bool is_special(int format, uint code)
{
    return (code & 0x7F) >= (format == E4M3_E8M0 ? 0x7Fu : 0x7Cu);
}

/* A special code times a scale, as bf16. */
static inline ushort special_value(int format, uint code, bool nan_scale)
{
    return format == E5M2_E8M0 && (code & 0x7F) == 0x7C && !nan_scale ? (code << 8 & 0x8000) | 0x7F80 : BF16_NAN;
}

/* Puts right what the row's special codes became; see decode_row(). */
static inline void mend_row(int format, local const uchar *slot, uint row, uint scales, local uchar *to)
{
    ROLLED for (uint i = 0; i < 64; i++) {
        const uint code = slot[row * 64 + ((i / 16 ^ row / 2 % 4) * 16 + i % 16)];
        if (is_special(format, code))
            *(local ushort *)(to + row * 128 + ((i / 8 ^ row % 8) * 16 + i % 8 * 2)) =
                special_value(format, code, (scales >> i / 32 * 8 & 0xFF) == 255);
    }
}

/* The words of a row, 8 codes after the other; *special gets the signs' bits of what is special. */
static inline __attribute__((always_inline))
void decode_words(int format, const uint4 *words, uint scales, bool in_range, bool as_moved, local uchar *to, uint turn,
                  uint *special)
{
    const uint more = format == E4M3_E8M0 ? 0x01010101u : 0x04040404u;
    UNROLL for (uint i = 0; i < 8; i++) {
        const uint first = i * ROW_BYTES(format) / 32, scale = scales >> i * 8 / SCALE_RUN(format) * 8 & 0xFF;
        const uint4 w = words[first / 4];
        const uint x = first % 4 == 0 ? w.x : first % 4 == 1 ? w.y : first % 4 == 2 ? w.z : w.w;
        const uint y = first % 4 == 0 ? w.y : w.w;
        uint4 pairs;
        if (CODE_BITS(format) == 8) {
            pairs = (uint4)(move_bytes(format, x), move_bytes(format, y));
            *special |= ((x + more) ^ x) | ((y + more) ^ y);
        } else {
            pairs = move_halves(x, as_moved);
        }
        *(local uint4 *)(to + (i ^ turn) * 16) =
            in_range ? multiply_pairs(pairs, factor_pair(format, scale))
                     : multiply_pairs(multiply_pairs(pairs, power_pair(UNIT(format))), scale_pair(format, scale));
    }
}

/*
 * Row `row` of a slot, whose 16-byte words are swizzled as TMA does with rows of 64 or 32 bytes, to row `row` of a matrix
 * in boxes of 128 bytes. `scales`: those of its 64 codes, the first in the low byte.
 */
static inline __attribute__((always_inline))
void decode_row(int format, local const uchar *slot, uint row, uint scales, bool as_moved, local uchar *to)
{
    const uint bytes = ROW_BYTES(format), turn = bytes == 64 ? row / 2 % 4 : row / 4 % 2;
    local const uint4 *from = (local const uint4 *)(slot + row * bytes);
    const bool in_range = (scales & 0xFF) <= LARGEST_SCALE(format) && (scales >> 8 & 0xFF) <= LARGEST_SCALE(format);
    uint4 words[4];
    uint special = 0;
    UNROLL for (uint i = 0; i < bytes / 16; i++)
        words[i] = from[i ^ turn];
    if (format == E2M1_E4M3 || all_of_warp(in_range))
        decode_words(format, words, scales, true, as_moved, to + row * 128, row % 8, &special);
    else
        decode_words(format, words, scales, false, as_moved, to + row * 128, row % 8, &special);
    if (CODE_BITS(format) == 8 && (special & 0x80808080u) != 0)
        mend_row(format, slot, row, scales, to);
}
