/*
 * Dots: the elements of the grouped GEMMs for CPUs. multiply.h and the files that it includes build
 * on one another in this order: dots.h, target.h, prefetch.h, tile.h, multiply.h.
 *
 * A dot is the part of the reduction that one element of a panel holds. A dot is one value (a
 * float, with BF16 = 1 rounded to bf16) or, if DOT is not 0, a pair of bf16 values that are
 * neighbours in the reduction, the first in the high half of 32 bits. A chain adds STEP dots at a
 * time: one value (add_fma.h), one pair (add_pairs.h) or, with DOT = 2, 16 pairs (add_amx.h).
 *
 * A pair that lacks its second value has -0 in its place in one operand, and 0 in the other. Adding
 * their product changes nothing, not even the sign of a zero.
 *
 * Required: BF16 (0, 1); DOT (0, 1, 2; 1 and 2 need BF16).
 */
#if !defined(BF16) || !defined(DOT)
#error "BF16 and DOT must be defined"
#endif
#if DOT && !BF16
#error "DOT needs BF16"
#endif

typedef char vector_has_its_lanes[VEC == MOERT_VECTOR ? 1 : -1];

/* ---- values of an operand ---- */

/* value: the type of a row operand's values in memory. LINE: a pointer to the elements of a line.
 * load_operand loads 16 values as floats; rounded rounds 16 values of a weight. */
#if BF16
typedef ushort value;
#define LINE local const element *

static inline vec load_operand(global const ushort *p, int n) {
    if (n >= VEC)
        return as_float16(convert_uint16(LOAD_VECTOR(global, ushort, 16, p)) << 16);
    ushort lane[VEC];
    for (int i = 0; i < VEC; i++)
        lane[i] = i < n ? p[i] : 0;
    return as_float16(convert_uint16(vload16(0, lane)) << 16);
}

static inline vec rounded(vec x) {
    const uint16 u = as_uint16(x), up = (u + 0x7FFF + (u >> 16 & 1)) & 0xFFFF0000u;
    return as_float16((u & 0x7FFFFFFF) > 0x7F800000u ? 0x7FC00000u : up);
}
#else
typedef float value;
#define LINE               global const float *
#define load_operand(p, n) load_part(p, n)
#define rounded(x)         (x)
#endif

/* ---- dots ---- */

#define STEP (DOT == 2 ? 16 : 1) /* dots that a chain adds at a time */
/* k rounded up to whole steps; panels and lines hold zeros from k on */
#define WHOLE_STEPS(k) (((k) + STEP * PER_DOT - 1) / (STEP * PER_DOT) * (STEP * PER_DOT))

/* element: the type of a dot in memory. spread: the type of a vector with one element in all lanes.
 * dot_of: the dots of 16 columns, from the values of PER_DOT rows. */
#if DOT
#define PER_DOT 2
typedef uint element;
typedef uint16 spread;

static inline vec dot_of(const vec x[PER_DOT]) {
    return as_float16(as_uint16(x[0]) | as_uint16(x[1]) >> 16);
}
#else
#define PER_DOT   1
#define dot_of(x) ((x)[0])
typedef float element;
typedef vec spread;
#endif

/*
 * The lines of A that a tile reads. Floats are read in place. bf16 values are converted once for
 * all panels: they are widened or, as pairs, their halves are exchanged, since memory has the first
 * value in the low half.
 */
#if DOT
static inline void convert_line(global const ushort *from, int used, local uint *to) {
    int p = 0;
    for (; p + 2 * VEC <= used; p += 2 * VEC) {
        const uint16 pairs = (uint16)(as_uint8(LOAD_VECTOR(global, ushort, 16, from + p)),
                                      as_uint8(LOAD_VECTOR(global, ushort, 16, from + p + VEC)));
        STORE_VECTOR(local, uint, 16, rotate(pairs, (uint16)16), to + p / 2);
    }
    for (; p < used; p += 2)
        to[p / 2] = (uint)from[p] << 16 | (p + 1 < used ? from[p + 1] : 0x8000u);
    for (; p < WHOLE_STEPS(used); p += 2)
        to[p / 2] = 0;
}
#elif BF16
static inline void convert_line(global const ushort *from, int used, local float *to) {
    for (int p = 0; p < used; p += VEC)
        STORE_VECTOR(local, float, 16, load_operand(from + p, used - p), to + p);
}
#endif

/* Loads lines i to i + 15 of a transposed A for one dot: the K values from p on, which are rows of
 * `a`. K values from `used` on are -0. */
static inline vec load_dot_across(global const value *a, ulong lda, int i, int lines, int p,
                                  int used) {
    vec x[PER_DOT];
    UNROLL_FOR(int q = 0; q < PER_DOT; q++)
        x[q] = p + q < used ? load_operand(a + (p + q) * lda + i, lines - i) : -0.0f;
    return dot_of(x);
}
