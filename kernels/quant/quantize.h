/*
 * Included by quantize.cl, which lists the required defines: the arguments of its kernels, the
 * scales of blocks, and the encoding of elements.
 */
#include "quant/part.h"

/* The arguments that every kernel in quantize.cl has. */
typedef struct job {
    global const uint *ends;
    global const float *x; /* with RUNS: only the odd runs of args.x_runs columns are used */
    global uchar *q, *scale;
    global const float *amax, *whole; /* null, one value, or (args.group_scales) one per group */
    global const float *norm;         /* one value, or null */
    moert_quantize_args args;
} job;

#define ARGUMENTS                                                                                  \
    global const uint *ends, global const float *x, global uchar *q, global uchar *scale,          \
        global const float *amax, global const float *whole, global const float *norm,             \
        moert_quantize_args args
#define JOB                                                                                        \
    { ends, x, q, SCALES_OF(q, scale, args.columns), amax, whole, norm, args }

/* The scales of a vec of columns, or one scale in all lanes. */
typedef struct scaling {
    uvec code;                 /* the scale's bits, E8M0 or E4M3 */
    vec factor, first, second; /* elements are x * factor, or (x / first) / second */
    ivec zero;                 /* lanes whose elements are 0 instead */
} scaling;

/* ---- scales ---- */

static inline vec at_most_finite(vec x) {
    return x > FLT_MAX ? FLT_MAX : x;
}

/* The bits in E8M0 of t, which is not negative, rounded up to a power of two. invert_e8m0 returns
 * the exact reciprocal of a scale. */
static inline uvec ceil_e8m0(vec t) {
    const uvec u = as_uvec(t), e = u >> 23, m = u & 0x7FFFFFu;
    const uvec up = min(m > (e == 0u ? (uvec)0x400000u : (uvec)0) ? e + 1u : e, 254u);
    return u > 0x7F800000u ? 255u : up;
}

static inline vec invert_e8m0(uvec b) {
    return as_vec(b == 255u ? QUIET : b == 254u ? 0x00400000u : (254u - b) << 23);
}

static inline scaling scale_e8m0(vec amax, int rounding) {
    const uvec u = as_uvec(amax),
               down = convert_uvec(max(convert_ivec(u >> 23) - LARGEST_EXPONENT, 0));
    const uvec code = rounding != FLOOR ? ceil_e8m0(amax * (1.0f / LARGEST))
                      : u > 0x7F800000u ? 255u
                                        : down;
    return (scaling){code, invert_e8m0(code), (vec)1.0f, (vec)1.0f, (ivec)0};
}

/* The values of E4M3 bits. If `one`, all lanes hold the same bits, which are decoded once. */
static inline vec decode_scale(uvec code, bool one) {
    const vec x = decode(code, E4M3);
    return one ? (vec)x.s0 : x;
}

/* The rule of cuDNN's epilogues, where 2^-127 counts as 0 and the largest value of E5M2 as 128. */
static inline scaling scale_normed(vec amax, float norm, bool one) {
    const float largest = LARGEST == 57344.0f ? 128.0f : LARGEST,
                n = norm > 0.0f ? norm : as_float(QUIET);
    const vec t = amax * (1.0f / largest) * n;
    const uvec code = SCALE == 0 ? ceil_e8m0(t) : encode(t, E4M3);
    const vec inverse = SCALE == 0 ? invert_e8m0(code) : 1.0f / decode_scale(code, one);
    const ivec zero = code == 0u;
    return (scaling){code, at_most_finite(n * (zero ? INFINITY : inverse)), (vec)1.0f, (vec)1.0f,
                     SCALE == 1 ? zero : 0};
}

/* Whether x / by can be computed from 1 / by for |x| up to amax without an overflow or underflow
 * that would change an element. */
static inline bool all_ordinary(vec by, vec amax) {
    return all(by >= 0x1p-60f && amax <= FLT_MAX);
}

/* x / by, correctly rounded, from inverse = 1 / by, correctly rounded (Markstein: "Computation of
 * elementary functions on the IBM RISC System/6000 processor", 1990). `by` is positive. copysign
 * restores the sign of a zero, which the sums lose. */
static inline vec divided(vec x, vec by, vec inverse) {
    vec y = x * inverse;
    y = fma(fma(-y, by, x), inverse, y);
    return copysign(fma(fma(-y, by, x), inverse, y), x);
}

static inline scaling scale_f32(vec amax) {
    scaling s;
    s.first = quiet(at_most_finite(amax) / 448.0f);
    s.factor = MOERT_ITEMS > 1 && all_ordinary(s.first, amax) ? 1.0f / s.first : (vec)0.0f;
    s.second = 1.0f;
    s.code = 0;
    s.zero = s.first == 0.0f;
    return s;
}

#if SCALE == 1
static inline scaling scale_nvfp4(vec amax, int has_amax, float a, float g, bool one) {
    scaling s;
    s.first = s.second = s.factor = 1.0f;
    if (RULE == TE) {
        const float by = has_amax ? a : g, all = (has_amax ? 2688.0f : 1.0f) / by;
        const float up = by == 0.0f || all == 0.0f ? 1.0f : all > FLT_MAX ? FLT_MAX : all;
        s.code = encode(amax * (up * (1.0f / 6.0f)), E4M3);
        const vec decoded = decode_scale(s.code, one);
        s.factor = at_most_finite(1.0f / (decoded * (1.0f / up)));
        s.zero = decoded == 0.0f;
    } else if (RULE == TORCHAO) {
        const vec t = g == 0.0f ? (vec)0.0f : amax / 6.0f / g, least = 0x1p-6f;
        s.code = encode(t < least ? least : t, E4M3);
        s.factor = at_most_finite(1.0f / (vec)g / decode_scale(s.code, one));
        s.zero = (vec)g == 0.0f;
    } else {
        const vec t = amax / g;
        s.zero = t < 6.0f * 0x1p-9f;
        s.code = s.zero ? 0u : encode(t / 6.0f, E4M3);
        s.first = g;
        s.second = decode_scale(s.code, one);
    }
    return s;
}
#endif

/* Values that all blocks of a row group use, read once. */
typedef struct shared {
    float amax, whole, norm;
} shared;

static inline shared load_shared(const job *j, uint group) {
    const uint g = j->args.group_scales ? group : 0;
    return (shared){SCALE == 1 && j->amax != 0 ? j->amax[g] : 0.0f,
                    SCALE == 1 && j->whole != 0 ? j->whole[g] : 1.0f,
                    SCALE != 2 && j->norm != 0 ? *j->norm : 0.0f};
}

/* The scale of blocks from their largest magnitude bits. `one`: all lanes belong to one block. */
static inline scaling make_scale(const job *j, shared all, uvec largest, bool one) {
    const vec amax = largest_of(largest);
    if (SCALE != 2 && j->norm != 0)
        return scale_normed(amax, all.norm, one);
#if SCALE == 0
    return scale_e8m0(amax, j->args.scale_rounding);
#elif SCALE == 1
    return scale_nvfp4(amax, j->amax != 0, all.amax, all.whole, one);
#else
    return scale_f32(amax);
#endif
}

/* ---- elements ---- */

static inline vec scaled(const scaling *s, vec x) {
#if SCALE == 2
    return s->factor.s0 == 0.0f ? x / s->first : divided(x, s->first, s->factor);
#elif SCALE == 1
    return RULE == BRIDGE ? x / s->first / s->second : x * s->factor;
#else
    return x * s->factor;
#endif
}

static inline uvec encode_elements(const job *j, const scaling *s, vec x, uint axis, uint row,
                                   int column) {
    const vec y = scaled(s, x);
#if ELEMENT_BITS == 4
    const int c = column + part_start();
    const uvec payload =
        ROUNDING == HALF_STEPS ? encode_half_steps(y)
        : ROUNDING == STOCHASTIC
            ? encode_stochastic(y, random_bytes(j->args.seed, axis,
                                                row * (ulong)((j->args.columns + 15) / 16) + c / 16,
                                                c / PART % 4))
            : encode(y, ELEMENT);
#else
    const uvec payload = encode(y, ELEMENT);
#endif
    return s->zero ? 0u : payload;
}

static inline vec load_x(const job *j, uint row, int column, int n) {
#ifndef RUNS
    return load_part(j->x + (ulong)row * j->args.columns + column, n);
#else
    global const float *line = j->x + (ulong)row * 2 * j->args.columns;
    float lane[PART];
    for (int i = 0; i < PART; i++) {
        const int c = column + part_start() + i;
        lane[i] = i < n - part_start()
                      ? line[(c / j->args.x_runs * 2 + 1) * j->args.x_runs + c % j->args.x_runs]
                      : 0.0f;
    }
    return vload_part(0, lane);
#endif
}
