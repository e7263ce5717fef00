/*
 * Selected by tile.h for DOT = 1: both products of a pair join the chain with one rounding each,
 * the product of the high halves first. This is how AVX-512's vdpbf16ps computes, and two
 * successive fma of the widened values give the same bits. Where __AVX512F__ is defined, the CPU
 * must have AVX-512 BF16; elsewhere the driver compiles for fewer features than its CPU has.
 */
#ifdef __AVX512F__
static inline vec multiply_add(vec sum, spread a, vec b) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}
#else
static inline vec multiply_add(vec sum, spread a, vec b) {
    sum = fma(as_float16(a & 0xFFFF0000u), as_float16(as_uint16(b) & 0xFFFF0000u), sum);
    return fma(as_float16(a << 16), as_float16(as_uint16(b) << 16), sum);
}
#endif
