/*
 * Included by formats.h on NVIDIA's GPUs that convert FP8 by instructions of their own, from Ada
 * Lovelace on. What they do is what moert_dtype says: nearest even, too large numbers become the
 * largest ones, and there is one NaN.
 */
#define CODES_OF(name, type)                                                                       \
    static inline uint pack_##name(vec x) {                                                        \
        uint codes;                                                                                \
        __asm__("{ .reg .b16 low, high; cvt.rn.satfinite." type "x2.f32 low, %2, %1; "             \
                "cvt.rn.satfinite." type "x2.f32 high, %4, %3; mov.b32 %0, {low, high}; }"         \
                : "=r"(codes)                                                                      \
                : "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w));                                         \
        return codes;                                                                              \
    }                                                                                              \
    static inline vec unpack_##name(uint codes) /* any NaN */                                      \
    {                                                                                              \
        float a, b, c, d; /* by way of f16, which has all of FP8's numbers */                      \
        __asm__("{ .reg .b16 low, high; .reg .b32 first, second; mov.b32 {low, high}, %4; "        \
                "cvt.rn.f16x2." type "x2 first, low; cvt.rn.f16x2." type "x2 second, high; "       \
                "mov.b32 {low, high}, first; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; "          \
                "mov.b32 {low, high}, second; cvt.f32.f16 %2, low; cvt.f32.f16 %3, high; }"        \
                : "=f"(a), "=f"(b), "=f"(c), "=f"(d)                                               \
                : "r"(codes));                                                                     \
        return (vec)(a, b, c, d);                                                                  \
    }                                                                                              \
    static inline uvec encode_##name(vec x) {                                                      \
        return convert_uvec(as_uchar4(pack_##name(x)));                                            \
    }                                                                                              \
    static inline vec decode_##name(uvec code) {                                                   \
        return quiet(unpack_##name(as_uint(convert_byte_vec(code))));                              \
    }
CODES_OF(e4m3, "e4m3")
CODES_OF(e5m2, "e5m2")
