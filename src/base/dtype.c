/* Converts single values. All steps but the last rounding are exact in float64. */
#include "base/dtype.h"
#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SPECIAL_INFINITY, SPECIAL_NAN, SPECIAL_NONE };

typedef struct layout {
    const char *name;
    int bits, mantissa, bias;
    uint32_t overflow, nan;
    int special;
} layout;

static const layout layouts[] = {
#define LAYOUT_ROW(name, text, bits, mantissa, bias, overflow, nan, special)                       \
    [MOERT_DTYPE_##name] = {text, bits, mantissa, bias, overflow, nan, SPECIAL_##special},
    MOERT_DTYPE_TABLE(LAYOUT_ROW)
#undef LAYOUT_ROW
};

const char *moert_dtype_name(moert_dtype type) {
    return (size_t)type < MOERT_COUNT(layouts) ? layouts[type].name : NULL;
}

size_t moert_dtype_bits(moert_dtype type) {
    return (size_t)layouts[type].bits;
}

float moert_dtype_largest(moert_dtype type) {
    const uint32_t above = layouts[type].overflow;
    const float value = moert_dtype_decode(type, above);
    return isinf(value) ? moert_dtype_decode(type, above - 1) : value;
}

uint32_t moert_float_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

float moert_float_from_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

float moert_float_quiet(float x) {
    return isnan(x) ? moert_float_from_bits(layouts[MOERT_DTYPE_F32].nan) : x;
}

/* Returns 2^exponent, a normal float64. In this file multiplying by a power of two is exact, and
 * far faster than ldexp. */
static double two_to(int exponent) {
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* floor(log2(x)) of a normal float64. */
static int exponent_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (int)(bits >> 52) - 1023;
}

/* rint() of 0 to 2^51: float64 has no fractions from 2^52 on. */
static double nearest(double x) {
    return x + 0x1p52 - 0x1p52;
}

/* The number of low float32 bits that the dtype lacks: 16 for BF16, 0 for F32; -1 for other
 * dtypes. */
static int bits_below(const layout *type) {
    return type->bias == 127 ? 32 - type->bits : -1;
}

/* Returns `bits` with the sign of x. */
static uint32_t with_sign(const layout *to, uint32_t bits, float x) {
    return signbit(x) ? bits | 1u << (to->bits - 1) : bits;
}

/*
 * The values of a binade [2^e, 2^(e+1)) are 2^mantissa steps of 2^(e-mantissa). Below the least
 * normal exponent all steps have the same size. So the bits of a value, without the sign, count the
 * steps from zero to it.
 */
uint32_t moert_dtype_encode(moert_dtype type, float x) {
    const layout *to = &layouts[type];
    const int least = 1 - to->bias;
    const double magnitude = fabs((double)x);
    int exponent = least;
    if (isnan(x))
        return to->nan;
    if (bits_below(to) >= 0) {
        const uint32_t bits = moert_float_bits(x), odd = bits >> bits_below(to) & 1;
        const uint32_t below_half = (1u << bits_below(to)) / 2 - 1 + odd;
        return bits_below(to) == 0 ? bits : (bits + below_half) >> bits_below(to);
    }
    if (isinf(x))
        return with_sign(to, to->overflow, x);
    if (magnitude >= two_to(least))
        exponent = exponent_of(magnitude);
    const double steps = nearest(magnitude * two_to(to->mantissa - exponent));
    const double count = (exponent - least) * two_to(to->mantissa) + steps;
    return with_sign(to, count < to->overflow ? (uint32_t)count : to->overflow, x);
}

float moert_dtype_decode(moert_dtype type, uint32_t bits) {
    const layout *from = &layouts[type];
    if (bits_below(from) >= 0)
        return moert_float_quiet(moert_float_from_bits(bits << bits_below(from)));
    const uint32_t sign = 1u << (from->bits - 1), magnitude = bits & (sign - 1);
    const uint32_t fraction = magnitude & ((1u << from->mantissa) - 1);
    const int exponent = (int)(magnitude >> from->mantissa), least = 1 - from->bias;
    const uint32_t infinity = (sign - 1) >> from->mantissa << from->mantissa;
    double value = exponent == 0 ? fraction * two_to(least - from->mantissa)
                                 : (fraction + two_to(from->mantissa)) *
                                       two_to(least + exponent - 1 - from->mantissa);
    if (from->special == SPECIAL_INFINITY && magnitude == infinity)
        value = INFINITY;
    if ((from->special == SPECIAL_INFINITY && magnitude > infinity) ||
        (from->special == SPECIAL_NAN && magnitude == from->nan))
        return moert_float_quiet(NAN);
    return (float)((bits & sign) != 0 ? -value : value);
}

/* ---- other roundings of E2M1 ---- */

uint32_t moert_dtype_encode_bridge(float x) {
    static const uint32_t of_half_steps[] = {0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 7, 7};
    const layout *to = &layouts[MOERT_DTYPE_E2M1];
    if (isnan(x))
        return to->nan;
    return with_sign(to, of_half_steps[(int)rint(fmin(2.0 * fabs((double)x), 12.0))], x);
}

uint32_t moert_dtype_encode_stochastic(float x, uint8_t random) {
    if (isnan(x))
        return layouts[MOERT_DTYPE_E2M1].nan;
    const float magnitude = fminf(fabsf(x), 6.0f);
    const float step = magnitude < 2.0f ? 0.5f : magnitude < 4.0f ? 1.0f : 2.0f;
    const float moved = magnitude + ((float)random + 0.5f) / 256.0f * step;
    return moert_dtype_encode(MOERT_DTYPE_E2M1, copysignf(floorf(moved / step) * step, x));
}

/* ---- E8M0 ---- */

enum { E8M0_BIAS = 127, E8M0_LARGEST = 254, E8M0_NAN = 255 };

static uint8_t e8m0_of(int exponent) {
    const int b = exponent + E8M0_BIAS;
    return (uint8_t)(b < 0 ? 0 : b > E8M0_LARGEST ? E8M0_LARGEST : b);
}

float moert_e8m0_decode(uint8_t b) {
    return b == E8M0_NAN ? moert_float_quiet(NAN) : ldexpf(1.0f, b - E8M0_BIAS);
}

float moert_e8m0_inverse(uint8_t b) {
    return b == E8M0_NAN ? moert_float_quiet(NAN) : ldexpf(1.0f, E8M0_BIAS - b);
}

uint8_t moert_e8m0_ceil(float t) {
    if (isnan(t))
        return E8M0_NAN;
    if (isinf(t))
        return E8M0_LARGEST;
    if (t == 0.0f)
        return 0;
    const int exponent = ilogbf(t);
    return e8m0_of(ldexpf(1.0f, exponent) < t ? exponent + 1 : exponent);
}

uint8_t moert_e8m0_floor(float amax, int exponent) {
    if (isnan(amax))
        return E8M0_NAN;
    if (amax == 0.0f)
        return 0;
    return e8m0_of((isinf(amax) ? E8M0_BIAS + 1 : ilogbf(amax)) - exponent);
}

/* ---- sorting ---- */

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void moert_sort_numbers(double *values, size_t count) {
    qsort(values, count, sizeof *values, ascending);
}
