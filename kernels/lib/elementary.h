/*
 * exp, exp2, expm1, log and log1p of a vec, expf and logf of a float, with the same bits from every
 * OpenCL driver for CPUs. Of the drivers' own functions, up to 5 % of the results differ in the
 * last bit. The functions below use operations that IEEE 754 rounds (+, -, *, fma), operations on
 * integers, and no tables. So the result of a lane depends neither on the driver nor on the width
 * of the vector. The functions need a device that keeps subnormal numbers.
 *
 * Kernels call the functions of this file as moert_exp, moert_log and so on. Macros that redefine
 * the built-in names would hide which function is called, and a file that forgets to include this
 * one would still compile.
 *
 *   exp    x = n ln 2 + r with n = rint(x / ln 2), so |r| <= (ln 2) / 2. The reduction subtracts n
 *          times the high part of ln 2, which has 15 bits, then n times the low part.
 *            e^r - 1 = r + r^2 q(r),  q of degree 4        relative error of e^r: 2^-27.7
 *            e^x     = 2^n (1 + (e^r - 1)), multiplied by two powers of 2, since 2^n itself may be
 *                      subnormal or infinite. Only the second product may round.
 *   exp2   n = rint(x), r = (x - n) ln 2
 *   expm1  2 (2^(n-1) (e^r - 1) + (2^(n-1) - 1/2)), since 2^n may be infinite
 *   log    x = 2^e (1 + f) with 1 + f in [2/3, 4/3)
 *            log(1 + f) = f + f^2 p(f),  p of degree 8     relative error: 2^-27.5
 *            log x      = e ln 2 + log(1 + f)
 *   log1p  e of 1 + x, which is rounded; then f = 2^-e x + (2^-e - 1), rounded once
 *
 * q and p are minimax polynomials for the relative errors above, computed by Remez' algorithm in 30
 * digits. The first coefficient was set to 1/2 (q) and -1/2 (p); a random search over neighbouring
 * floats then chose the others. With the rounding of all steps, errors over all floats are at most
 * 1.03 ulp (exp, exp2), 0.93 (log) and 1.55 (expm1, log1p);
 * tests/unit/device/test_device_elementary.c measures them.
 *
 * Special cases: a NaN gives a NaN. exp(-inf) = 0, exp(inf) = inf; results that round to 0 or
 * beyond the largest float are 0 and inf, subnormal results are not flushed. log(+-0) = -inf,
 * log(inf) = inf, log(x < 0) = NaN; log1p(-1) = -inf, log1p(x < -1) = NaN. expm1(x) = log1p(x) = x,
 * with its sign, for |x| < 2^-25.
 *
 * With MOERT_FAST the names stand for the driver's functions, which on NVIDIA's GPUs use the
 * hardware's exp2 and log2. The epilogues of tensor-core GEMMs have no registers to spare for the
 * functions below, and the separate GLU must give the same bits.
 */
#ifdef MOERT_FAST
#define moert_exp   exp
#define moert_exp2  exp2
#define moert_expm1 expm1
#define moert_log   log
#define moert_log1p log1p
#define moert_expf  exp
#define moert_logf  log
#else
#define LN_2      0x1.62e43p-1f
#define LN_2_HIGH 0x1.62e4p-1f
#define LN_2_LOW  0x1.7f7d1cp-20f
#define LOG2_E    0x1.715476p0f
#define ROUNDER   0x1.8p23f /* the low bits of x + ROUNDER are those of rint(x) */

/* 2^n for -127 < n < 128 */
INLINED vec power_of_2(ivec n) {
    return as_vec((n + 127) << 23);
}

/* x = n ln 2 + r */
typedef struct reduced {
    ivec n;
    vec r;
} reduced;

INLINED reduced reduce_exp(vec x) {
    const vec t = fma(x, (vec)LOG2_E, (vec)ROUNDER), n = t - ROUNDER;
    return (reduced){as_ivec(t) - as_ivec((vec)ROUNDER),
                     fma(n, (vec)-LN_2_LOW, fma(n, (vec)-LN_2_HIGH, x))};
}

/* e^r - 1 for |r| <= (ln 2) / 2 */
INLINED vec expm1_of_reduced(vec r) {
    vec q = fma(r, (vec)0x1.6a1c3cp-10f, (vec)0x1.1234fap-7f);
    q = fma(r, q, (vec)0x1.555784p-5f);
    q = fma(r, q, (vec)0x1.55549cp-3f);
    q = fma(r, q, (vec)0.5f);
    return fma(r * r, q, r);
}

INLINED vec exp_of_reduced(reduced x) {
    const ivec first = x.n >> 1;
    return (expm1_of_reduced(x.r) + 1.0f) * power_of_2(first) * power_of_2(x.n - first);
}

/* x within [low, high]; NaN passes. */
INLINED vec clamp_vec(vec x, float low, float high) {
    return x < low ? (vec)low : x > high ? (vec)high : x;
}

static inline vec moert_exp(vec x) {
    return exp_of_reduced(reduce_exp(clamp_vec(x, -104.0f, 89.0f)));
}

static inline vec moert_exp2(vec x) {
    const vec z = clamp_vec(x, -151.0f, 129.0f), t = z + ROUNDER;
    return exp_of_reduced(
        (reduced){as_ivec(t) - as_ivec((vec)ROUNDER), (z - (t - ROUNDER)) * LN_2});
}

static inline vec moert_expm1(vec x) {
    const reduced z = reduce_exp(clamp_vec(x, -20.0f, 89.0f));
    const vec power = power_of_2(z.n - 1), part = fma(power, expm1_of_reduced(z.r), power - 0.5f);
    return fabs(x) < 0x1p-25f ? x : 2.0f * part;
}

/* The exponent e of x = 2^e (1 + f), x normal and positive. */
INLINED ivec exponent_of(vec x) {
    return (as_ivec(x) - as_ivec((vec)0x1.555556p-1f)) >> 23;
}

/* f of x = 2^e (1 + f) */
INLINED vec fraction_of(vec x, ivec e) {
    return as_vec(as_ivec(x) - (e << 23)) - 1.0f;
}

/* e ln 2 + log(1 + f) for |f| <= 1/3 */
INLINED vec log_of_parts(vec e, vec f) {
    vec p = fma(f, (vec)-0x1.09327ap-3f, (vec)0x1.1ed2fcp-3f);
    p = fma(f, p, (vec)-0x1.f260a4p-4f);
    p = fma(f, p, (vec)0x1.1ebe08p-3f);
    p = fma(f, p, (vec)-0x1.55a5a6p-3f);
    p = fma(f, p, (vec)0x1.99d1f4p-3f);
    p = fma(f, p, (vec)-0x1.fffebep-3f);
    p = fma(f, p, (vec)0x1.555502p-2f);
    p = fma(f, p, (vec)-0.5f);
    return fma(e, (vec)LN_2_HIGH, fma(f * p, f, fma(e, (vec)LN_2_LOW, f)));
}

/* The logarithm y of x if x is finite and above the pole; else -infinity, infinity or NaN. */
INLINED vec log_or_special(vec x, float pole, vec y) {
    y = x > pole ? y : x == pole ? (vec)-INFINITY : (vec)NAN;
    return x < INFINITY ? y : x;
}

static inline vec moert_log(vec x) {
    const ivec tiny = x < 0x1p-126f;
    const vec grown = tiny ? x * 0x1p23f : x;
    const ivec e = exponent_of(grown);
    const vec y = log_of_parts(convert_vec(tiny ? e - 23 : e), fraction_of(grown, e));
    return log_or_special(x, 0.0f, y);
}

static inline vec moert_log1p(vec x) {
    const vec sum = 1.0f + x;
    const ivec e = exponent_of(sum);
    const vec scale = power_of_2(-e);
    /* 2^-e is not normal for the largest x; from 2^24 on, the 1 in 1 + x does not matter */
    const vec f = x < 0x1p24f ? fma(scale, x, scale - 1.0f) : fraction_of(sum, e);
    const vec y = log_or_special(x, -1.0f, log_of_parts(convert_vec(e), f));
    return fabs(x) < 0x1p-25f ? x : y;
}

static inline float moert_expf(float x) {
    return moert_exp((vec)x).x;
}

static inline float moert_logf(float x) {
    return moert_log((vec)x).x;
}
#endif
