/*
 * Conversions of one vec of elements, and the rotation of NVFP4.
 *
 * Six numbers describe an element type, as in MOERT_DTYPE_TABLE of include/moert/formats.h: bits,
 * mantissa bits, bias, the bit pattern above the largest finite value, that of NaN, special values
 * (0 none, 1 one NaN, 2 infinities). The host defines them as macros, so they are constants here.
 * Every conversion works on bits or is exact, except for one rounding.
 */
#ifndef MOERT_LIB_ENCODINGS_H
#define MOERT_LIB_ENCODINGS_H

#include "lib/instructions.h"

/*
 * Rounds to nearest even. A normal result is the bits of the float, rounded at the last kept bit
 * and shifted. For smaller results, a power of two is added whose float has the step of the
 * subnormal numbers. The addition rounds x to that step, and the low bits of the sum count the
 * steps.
 */
static inline uvec encode(vec x, int bits, int mantissa, int bias, uint overflow, uint nan_code,
                          int special) {
    const uvec u = as_uvec(x), a = u & 0x7FFFFFFF;
    const int shift = 23 - mantissa;
    const uint magic = (uint)(151 - bias - mantissa) << 23;
#ifdef HAS_FP8
    if (bits == 8 && bias == 7)
        return encode_e4m3(x);
    if (bits == 8 && bias == 15)
        return encode_e5m2(x);
#endif
#ifdef HAS_BF16
    if (mantissa == 7) {
        const uint low = pack_bf16(x.x, x.y), high = pack_bf16(x.z, x.w);
        return isnan(x) ? nan_code : (uvec)(low & 0xFFFF, low >> 16, high & 0xFFFF, high >> 16);
    }
#endif
#if MOERT_ITEMS > 1
    if (mantissa == 1)
        return as_uvec(e2m1_steps(quiet(x))) & 15u;
#endif
    if (mantissa == 1) {
        /* E2M1: adds a power of two so large that the floats near it are as far apart as the E2M1
         * values of the number's binade. The addition then rounds the number to an E2M1 value. */
        const uvec most = min(a, 0x40C00000u), binade = max(most & 0x7F800000u, 0x3F800000u);
        const uvec power = binade + (22u << 23),
                   steps = as_uvec(as_vec(most) + as_vec(power)) - power;
        return a > 0x7F800000u ? nan_code
                               : (steps + (binade >> 22) - 254u) | (u >> 31) << (bits - 1);
    }
    uvec code = ((a + ((1u << (shift - 1)) - 1) + ((a >> shift) & 1)) >> shift) -
                ((uint)(127 - bias) << mantissa);
    if (bias < 127) { /* with bias 127 the type has the exponents of a float */
        code = a < (uint)(128 - bias) << 23 ? as_uvec(as_vec(a) + as_float(magic)) - magic : code;
        code = min(code, (uvec)overflow); /* Oclgrind gets min() of a vector and a scalar wrong */
    }
    code |= (u >> 31) << (bits - 1);
    return a > 0x7F800000u ? nan_code : code;
}

static inline vec decode(uvec code, int bits, int mantissa, int bias, uint overflow, uint nan_code,
                         int special) {
#ifdef HAS_FP8
    if (bits == 8 && bias == 7)
        return decode_e4m3(code);
    if (bits == 8 && bias == 15)
        return decode_e5m2(code);
    if (mantissa == 1) /* E2M1: the bits, moved to their positions in a float32, times 2^126 */
        return as_vec((code & 8u) << 28 | (code & 7u) << 22) * 0x1p126f;
#endif
    const uint sign = 1u << (bits - 1), infinity = (sign - 1) >> mantissa << mantissa;
    const uvec a = code & (sign - 1);
    if (bias == 127) /* bf16 is the high half of a float */
        return as_vec(a > infinity ? QUIET : code << 16);
    /* subnormal numbers count steps of 2^least; a normal number is a float's bits with another
     * bias */
    const int least = 1 - bias - mantissa;
    const float step = as_float((uint)(least + 127) << 23);
    uvec u = (a << (23 - mantissa)) + ((uint)(127 - bias) << 23);
    u = a < 1u << mantissa ? (mantissa == 1 ? a * as_uint(step) : as_uvec(convert_vec(a) * step))
                           : u;
    if (special == 2)
        u = a == infinity ? 0x7F800000u : u;
    u |= (code & sign) << (32 - bits);
    if (special == 2)
        u = a > infinity ? QUIET : u;
    if (special == 1)
        u = a == nan_code ? QUIET : u;
    return as_vec(u);
}

/* decode(encode(x)) for a type of 4 or 8 bits whose largest value is `largest`; a NaN becomes any
 * value. Adds a power of two so large that the floats near it are as far apart as the values of the
 * number's binade, so that the addition rounds. */
static inline vec round_to(vec x, float largest, int bits, int mantissa, int bias, uint overflow,
                           uint nan_code, int special) {
    const uvec most = min(as_uvec(x) & 0x7FFFFFFFu, (uvec)as_uint(largest));
    const uvec binade = max(most & 0x7F800000u, (uvec)((uint)(128 - bias) << 23));
    const vec power = as_vec(binade + ((uint)(23 - mantissa) << 23));
    return as_vec(as_uvec((as_vec(most) + power) - power) | (as_uvec(x) & 0x80000000u));
}

#ifdef HAS_FP8
/* encode and decode for four elements of 8 bits in a word; a NaN becomes any NaN. */
static inline uint pack_bytes(vec x, int bits, int mantissa, int bias, uint overflow, uint nan_code,
                              int special) {
    if (bias == 7)
        return pack_e4m3(x);
    if (bias == 15)
        return pack_e5m2(x);
    return as_uint(convert_byte_vec(encode(x, bits, mantissa, bias, overflow, nan_code, special)));
}

static inline vec unpack_bytes(uint bytes, int bits, int mantissa, int bias, uint overflow,
                               uint nan_code, int special) {
    if (bias == 7)
        return unpack_e4m3(bytes);
    if (bias == 15)
        return unpack_e5m2(bytes);
    return decode(convert_uvec(as_uchar4(bytes)), bits, mantissa, bias, overflow, nan_code,
                  special);
}
#endif

/* 2^(b-127), NaN for 255. */
static inline vec decode_e8m0(uvec b) {
    return as_vec(b == 255u ? QUIET : b == 0u ? 0x00400000u : b << 23);
}

static inline uvec magnitude_bits(vec x) {
    return as_uvec(x) & 0x7FFFFFFFu;
}

/* The floats with these magnitude bits, of which those of a NaN are the largest. */
static inline vec largest_of(uvec bits) {
    return as_vec(bits > 0x7F800000u ? QUIET : bits);
}

/* Rotates the 16 rows of each lane: changes signs, takes sums and differences at distances 1, 2, 4,
 * 8, then divides by four. */
static inline void rotate_rows(vec v[16]) {
    const uint negative = 0xD7E8; /* bit i: row i changes sign */
    UNROLL_FOR(int i = 0; i < 16; i++)
        v[i] = (negative >> i & 1) ? -v[i] : v[i];
    UNROLL_FOR(int distance = 1; distance < 16; distance *= 2)
        UNROLL_FOR(int i = 0; i < 16; i++)
            if ((i & distance) == 0) {
                const vec a = v[i], b = v[i + distance];
                v[i] = a + b;
                v[i + distance] = a - b;
            }
    UNROLL_FOR(int i = 0; i < 16; i++)
        v[i] *= 0.25f;
}

/* The random bytes of a vec's elements: Philox4x32-10, as in src/base/rng.c. 16 elements share a
 * counter; on GPUs these are four vecs, and `word` selects one. */
static inline uvec random_bytes(ulong key, uint counter_high, ulong counter, int word) {
    uint k0 = (uint)key, k1 = (uint)(key >> 32), c0 = (uint)counter, c1 = (uint)(counter >> 32),
         c2 = counter_high, c3 = 0;
    for (int round = 0; round < 10; round++) {
        const uint high0 = mul_hi(0xD2511F53u, c0), high1 = mul_hi(0xCD9E8D57u, c2);
        const uint low0 = 0xD2511F53u * c0, low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0;
        c2 = high0 ^ c3 ^ k1;
        c1 = low1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
#if MOERT_ITEMS == 1
    return convert_uvec(as_uchar16((uint4)(c0, c1, c2, c3)));
#else
    return convert_uvec(as_uchar4(word == 0 ? c0 : word == 1 ? c1 : word == 2 ? c2 : c3));
#endif
}

/* ---- other roundings of E2M1 ---- */

#define DTYPE_E2M1 4, 1, 1, 7u, 7u, 0

/* Rounds to half steps, then to E2M1. In the second rounding, 5 and 7 half steps round down, as do
 * 9 and 10. */
static inline uvec encode_half_steps(vec x) {
    const uvec h = convert_uvec(rint(fmin(fabs(x) * 2.0f, 12.0f)));
    uvec code = h < 5u ? h : h < 6u ? 4u : h < 8u ? 5u : h < 11u ? 6u : (uvec)7;
    code |= as_uvec(x) >> 31 << 3;
    return isnan(x) ? 7u : code;
}

/* Rounds to an E2M1 value, up with a probability that grows with the distance. `random` has 8
 * random bits r, which count as (r + 1/2) / 256. A NaN becomes 6. */
static inline vec round_stochastic(vec x, uvec random) {
    const vec a = fmin(fabs(x), 6.0f), step = a < 2.0f   ? (vec)0.5f
                                              : a < 4.0f ? (vec)1.0f
                                                         : (vec)2.0f;
    const vec moved = a + (convert_vec(random) + 0.5f) / 256.0f * step;
    return copysign(floor(moved / step) * step, x);
}

static inline uvec encode_stochastic(vec x, uvec random) {
    const uvec code = encode(round_stochastic(x, random), DTYPE_E2M1);
    return isnan(x) ? 7u : code;
}

#endif
