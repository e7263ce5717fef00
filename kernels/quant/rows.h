/*
 * Included by fake_quantize.cl and fp8_rows.h after held.h: rows in float32 or bf16, and
 * largest magnitudes. Required: X_BF16 (0 rows are float32, 1 bf16).
 */
#ifndef X_BF16
#error "X_BF16 must be defined"
#endif

/* A step's elements as loaded. Converting them in a later loop lets a GPU have many loads in
 * flight; a conversion next to a conditional load would wait for it. */
#if X_BF16 && MOERT_ITEMS > 1 && defined(ALIGNED)
typedef uint2 loaded;
#elif X_BF16
typedef uvec loaded;
#else
typedef vec loaded;
#endif

/* Loads elements [at, at + n) of a step; lanes beyond them are zero. */
static inline loaded load_x_as(global const void *x, ulong at, int n) {
#if X_BF16 && MOERT_ITEMS > 1 && defined(ALIGNED)
    global const ushort *p = (global const ushort *)x + at + part_start();
    return part_start() < n ? *(global const uint2 *)p : (uint2)0;
#elif X_BF16
    return load_shorts((global const ushort *)x + at, n);
#else
    return load_part((global const float *)x + at, n);
#endif
}

/* The elements' values. A NaN stays some NaN. */
static inline vec floats_of(loaded x) {
#if X_BF16 && MOERT_ITEMS > 1 && defined(ALIGNED)
    return as_vec((uvec)(x.x << 16, x.x & 0xFFFF0000u, x.y << 16, x.y & 0xFFFF0000u));
#elif X_BF16
    return as_vec(x << 16);
#else
    return x;
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

/* The largest magnitude bits in each column of the held rows. */
static inline uvec held_largest(const vec held[HELD]) {
    uvec largest = 0;
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) largest = larger_bits(largest, held[r]);
    return largest;
}
