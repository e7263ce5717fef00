/*
 * Included by amax.cl and fake_quantize.cl after formats.h: rows in float32 or bf16, and largest
 * magnitudes. Required: X_BF16 (0 rows are float32, 1 bf16).
 */
#ifndef X_BF16
#error "X_BF16 must be defined"
#endif

/* Elements [at, at + n) of a step; lanes beyond them are zero. A NaN stays some NaN. */
static inline vec load_x_as(global const void *x, ulong at, int n) {
#if X_BF16
    return as_vec(load_shorts((global const ushort *)x + at, n) << 16);
#else
    return load_part((global const float *)x + at, n);
#endif
}

/* The largest magnitude bits of `most`, which are bits or 0, and x. */
static inline uvec larger_bits(uvec most, vec x) {
#ifdef HAS_WARPS
    const vec m = as_vec(most);
    return as_uvec((vec)(larger_magnitude(m.x, x.x), larger_magnitude(m.y, x.y),
                         larger_magnitude(m.z, x.z), larger_magnitude(m.w, x.w)));
#else
    return max(most, magnitude_bits(x));
#endif
}
