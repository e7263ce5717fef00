/*
 * Included by formats.h for NVIDIA's GPUs with FP8 conversion instructions, from Ada Lovelace on.
 * They round as moert_dtype specifies: to nearest even, large numbers saturate, and there is one
 * NaN.
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
