/*
 * Included by encodings.h: the only NaN that the functions of encodings.h produce, and the
 * conversions that GPUs compute in few instructions.
 */
#define QUIET 0x7FC00000u /* the only NaN that the conversions produce */

static inline vec quiet(vec x) {
    return isnan(x) ? as_vec((uvec)QUIET) : x;
}

#if MOERT_NVIDIA >= 89 && MOERT_ITEMS > 1
#define HAS_FP8
/*
 * FP8 conversions by instructions that GPUs have from Ada Lovelace on. They round as moert_dtype
 * specifies: to nearest even, large numbers saturate, and there is one NaN.
 */
#define DEFINE_CONVERSIONS(name, type)                                                             \
    static inline uint pack_##name(vec x) {                                                        \
        uint bytes;                                                                                \
        __asm__("{ .reg .b16 low, high; cvt.rn.satfinite." type "x2.f32 low, %2, %1; "             \
                "cvt.rn.satfinite." type "x2.f32 high, %4, %3; mov.b32 %0, {low, high}; }"         \
                : "=r"(bytes)                                                                      \
                : "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w));                                         \
        return bytes;                                                                              \
    }                                                                                              \
    static inline vec unpack_##name(uint bytes) /* a NaN becomes any NaN */                        \
    {                                                                                              \
        float a, b, c, d; /* through f16, which represents every FP8 value */                      \
        __asm__("{ .reg .b16 low, high; .reg .b32 first, second; mov.b32 {low, high}, %4; "        \
                "cvt.rn.f16x2." type "x2 first, low; cvt.rn.f16x2." type "x2 second, high; "       \
                "mov.b32 {low, high}, first; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; "          \
                "mov.b32 {low, high}, second; cvt.f32.f16 %2, low; cvt.f32.f16 %3, high; }"        \
                : "=f"(a), "=f"(b), "=f"(c), "=f"(d)                                               \
                : "r"(bytes));                                                                     \
        return (vec)(a, b, c, d);                                                                  \
    }                                                                                              \
    static inline uvec encode_##name(vec x) {                                                      \
        return convert_uvec(as_uchar4(pack_##name(x)));                                            \
    }                                                                                              \
    static inline vec decode_##name(uvec code) {                                                   \
        return quiet(unpack_##name(as_uint(convert_byte_vec(code))));                              \
    }
DEFINE_CONVERSIONS(e4m3, "e4m3")
DEFINE_CONVERSIONS(e5m2, "e5m2")
#endif

#if MOERT_NVIDIA >= 80 && MOERT_ITEMS > 1
#define HAS_BF16
/* Two bf16 values, rounded to nearest even; a NaN becomes any NaN. */
static inline uint pack_bf16(float low, float high) {
    uint pair;
    __asm__("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
#endif

#if MOERT_ITEMS > 1
/*
 * Returns 2^23 plus the bit pattern of the E2M1 value nearest to x, ties to even. The pattern of
 * the magnitude is the minimum of 2 x, x + 2, x / 2 + 4 and 7; adding 2^23 rounds to a whole
 * number. A NaN must be positive.
 */
static inline vec e2m1_steps(vec x) {
    const vec a = fabs(x), sign = as_vec((as_uvec(x) & 0x80000000u) | 0x3F800000u);
    const vec low = fmin(fma(a, (vec)2.0f, (vec)0x800004p0f), a + 0x800006p0f);
    const vec high = fmin(fma(a, (vec)0.5f, (vec)0x800008p0f), (vec)0x80000Bp0f);
    /* the minimum is 4 too large: subtracts 4 or, if x < 0, adds 4, since the sign bit is 8 */
    return fma(sign, (vec)-4.0f, fmin(low, high));
}

/* Packs 8 results of e2m1_steps into a word. */
static inline uint pack_e2m1(vec first, vec second) {
    const uvec a = as_uvec(first), b = as_uvec(second);
    const uint low = a.x + (a.y << 4) - 0xFB000000u; /* subtracts the bits of 2^23 in a.x and a.y */
    return low + (a.z << 8) + (a.w << 12) + (b.x << 16) + (b.y << 20) + (b.z << 24) + (b.w << 28);
}

/* Makes NaNs positive. NVIDIA's arithmetic produces positive NaNs anyway. */
static inline vec computed(vec x) {
#if defined(__NV_CL_C_VERSION) || defined(__NVPTX__)
    return x;
#else
    return quiet(x);
#endif
}
#endif
