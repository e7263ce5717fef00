/*
 * Included by nvidia_codes.cl: decoding for a second factor whose terms lie along its rows, with blocks along them (COLUMN
 * of include/moert/formats.h): 64 terms x 128 columns become two boxes of 64 rows of 64 columns. Codes lie in rows of 128
 * bytes, swizzled: 64 rows of 8 bits, of which a thread has half a row; or 32 rows of pairs of terms, the first in the low
 * half of a byte, of which a thread has 32 columns.
 *
 * A warp has few blocks: 1 (8 bits), 2 or, of 16 terms, 4, and 64 or 32 columns. Its threads make the factors of two
 * columns each, once for all rows, which come back from FACTOR_BYTES of local memory of the warp.
 */
#define FACTOR_BYTES 256
#define BLOCKS_OF(format) (CODE_BITS(format) == 8 ? 1 : 64 / SCALE_RUN(format)) /* of a warp */

/* Where the warp's and this lane's first scale lie in a step and part: its block and column. */
static inline uint2 scale_place(int format, uint thread)
{
    const uint warp = thread / 32, lane = thread % 32;
    return CODE_BITS(format) == 8 ? (uint2)(warp % 2, warp / 2 * 64 + 2 * lane)
                                  : (uint2)(lane / 16, warp * 32 + lane % 16 * 2);
}

/* This lane's scales: of two columns; of 4 blocks of a warp, of two blocks. */
static inline uint load_pair(int format, global const uchar *p, uint width)
{
    const uint first = *(global const ushort *)p;
    return BLOCKS_OF(format) == 4 ? first | (uint)*(global const ushort *)(p + 2 * (ulong)width) << 16 : first;
}

static inline uint pair_of(int format, uint codes, bool in_range)
{
    const uint low = codes & 0xFF, high = codes >> 8 & 0xFF;
    const uint a = in_range ? factor_pair(format, low) : scale_pair(format, low);
    const uint b = in_range ? factor_pair(format, high) : scale_pair(format, high);
    return permute_bytes(a, b, 0x5410);
}

/* Makes the warp's factors; false if they are scales alone. */
static inline bool make_factors(int format, uint codes, uint lane, local uchar *factors)
{
    const uint largest = LARGEST_SCALE(format);
    const bool in_range = format == E2M1_E4M3 || all_of_warp((codes & 0xFF) <= largest && (codes >> 8 & 0xFF) <= largest);
    local uint *pairs = (local uint *)factors;
    sync_warp(); /* all have read the last ones */
    pairs[lane] = pair_of(format, codes, in_range);
    if (BLOCKS_OF(format) == 4)
        pairs[lane + 32] = pair_of(format, codes >> 16, in_range);
    sync_warp();
    return in_range;
}

static inline uint4 scaled(int format, uint4 pairs, uint4 f, bool in_range)
{
    const uint4 x = in_range ? pairs : multiply_pairs(pairs, power_pair(UNIT(format)));
    return (uint4)(multiply_pair(x.x, f.x), multiply_pair(x.y, f.y), multiply_pair(x.z, f.z), multiply_pair(x.w, f.w));
}

/* Puts right what the special codes of half a row became. */
static inline void mend_columns(int format, local const uchar *from, uint half_row, uint turn, local const uchar *factors,
                                local uchar *to)
{
    ROLLED for (uint i = 0; i < 64; i++) {
        const uint code = from[((half_row * 4 + i / 16) ^ turn) * 16 + i % 16];
        const uint factor = ((local const ushort *)factors)[i];
        if (is_special(format, code))
            *(local ushort *)(to + ((i / 8 ^ turn) * 16 + i % 8 * 2)) =
                special_value(format, code, (factor & 0x7FFF) > 0x7F80);
    }
}

/* Half a row of 128 codes of 8 bits. */
static inline __attribute__((always_inline))
void decode_bytes_down(int format, local const uchar *slot, uint thread, bool in_range, local const uchar *factors,
                       local uchar *to)
{
    const uint row = thread % 64, half_row = thread / 64, turn = row % 8;
    const uint more = format == E4M3_E8M0 ? 0x01010101u : 0x04040404u;
    local const uchar *from = slot + row * 128;
    uint special = 0;
    to += half_row * 8192 + row * 128;
    UNROLL for (uint i = 0; i < 4; i++) {
        const uint4 w = *(local const uint4 *)(from + ((half_row * 4 + i) ^ turn) * 16);
        local const uint4 *f = (local const uint4 *)factors + 2 * i;
        const uint4 first = (uint4)(move_bytes(format, w.x), move_bytes(format, w.y));
        const uint4 second = (uint4)(move_bytes(format, w.z), move_bytes(format, w.w));
        special |= ((w.x + more) ^ w.x) | ((w.y + more) ^ w.y) | ((w.z + more) ^ w.z) | ((w.w + more) ^ w.w);
        *(local uint4 *)(to + (2 * i ^ turn) * 16) = scaled(format, first, f[0], in_range);
        *(local uint4 *)(to + ((2 * i + 1) ^ turn) * 16) = scaled(format, second, f[1], in_range);
    }
    if ((special & 0x80808080u) != 0)
        mend_columns(format, from, half_row, turn, factors, to);
}

/* The low, or the high, halves of two bytes, each in the low byte of 16 bits, in moved form. */
static inline uint move_low(uint x)
{
    return (x << 6 & 0x01C001C0u) | (x << 12 & 0x80008000u);
}

static inline uint move_high(uint x)
{
    return (x << 2 & 0x01C001C0u) | (x << 8 & 0x80008000u);
}

/* 32 columns of a pair of terms. */
static inline __attribute__((always_inline))
void decode_halves_down(int format, local const uchar *slot, uint thread, bool in_range, local const uchar *factors,
                        local uchar *to)
{
    const uint row = thread % 32, quarter = thread / 32, turn = row % 8, even = 2 * row % 8;
    local const uint4 *f = (local const uint4 *)(factors + row / (32 / BLOCKS_OF(format)) * 64);
    to += quarter / 2 * 8192 + 2 * row * 128;
    UNROLL for (uint i = 0; i < 4; i++) {
        const uint2 w = *(local const uint2 *)(slot + row * 128 + ((quarter * 2 + i / 2) ^ turn) * 16 + i % 2 * 8);
        const uint4 x = (uint4)(permute_bytes(w.x, 0, 0x4140), permute_bytes(w.x, 0, 0x4342), permute_bytes(w.y, 0, 0x4140),
                                permute_bytes(w.y, 0, 0x4342));
        const uint4 low = (uint4)(move_low(x.x), move_low(x.y), move_low(x.z), move_low(x.w));
        const uint4 high = (uint4)(move_high(x.x), move_high(x.y), move_high(x.z), move_high(x.w));
        const uint word = quarter % 2 * 4 + i;
        *(local uint4 *)(to + (word ^ even) * 16) = scaled(format, low, f[i], in_range);
        *(local uint4 *)(to + 128 + (word ^ (even + 1)) * 16) = scaled(format, high, f[i], in_range);
    }
}

/* A slot of codes with this lane's scales, to two boxes at `to`. */
static inline __attribute__((always_inline))
void decode_columns(int format, local const uchar *slot, uint thread, uint codes, local uchar *factors, local uchar *to)
{
    const bool in_range = make_factors(format, codes, thread % 32, factors);
    if (CODE_BITS(format) == 8 && in_range)
        decode_bytes_down(format, slot, thread, true, factors, to);
    else if (CODE_BITS(format) == 8)
        decode_bytes_down(format, slot, thread, false, factors, to);
    else if (in_range)
        decode_halves_down(format, slot, thread, true, factors, to);
    else
        decode_halves_down(format, slot, thread, false, factors, to);
}
