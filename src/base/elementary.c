/*
 * Each function reduces its argument exactly or with a two-part constant, then sums a Taylor series
 * whose next term is below half a unit in the last place.
 */
#include "base/elementary.h"

#include <math.h>

#include "base/memory.h"

/* The sum of coefficient[i] x^i. */
#define SERIES(coefficient, x) series(coefficient, MOERT_COUNT(coefficient), x)
static double series(const double *coefficient, size_t count, double x) {
    double sum = coefficient[count - 1];
    for (size_t i = count - 1; i-- > 0;)
        sum = sum * x + coefficient[i];
    return sum;
}

/* *n = the integer nearest to x / (high + low); returns x - n (high + low). */
static double reduce(double x, double inverse, double high, double low, double *n) {
    *n = rint(x * inverse);
    return fma(-*n, low, fma(-*n, high, x));
}

#define LN_2_HIGH 0x1.62e42fefa39efp-1
#define LN_2_LOW  0x1.abc9e3b39803fp-56

/* x = n ln 2 + r, e^x = 2^n e^r. */
double moert_exp(double x) {
    /* (e^r - 1 - r) / r^2 */
    static const double tail[] = {1.0 / 2,       1.0 / 6,        1.0 / 24,        1.0 / 120,
                                  1.0 / 720,     1.0 / 5040,     1.0 / 40320,     1.0 / 362880,
                                  1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
    if (isnan(x))
        return x;
    double n;
    const double r = reduce(fmin(fmax(x, -746.0), 710.0), 1.0 / LN_2_HIGH, LN_2_HIGH, LN_2_LOW, &n);
    return ldexp(1.0 + (r + r * r * SERIES(tail, r)), (int)n);
}

/* x = 2^n m with m in [sqrt(1/2), sqrt(2)), log m = 2 artanh(s) with s = (m - 1) / (m + 1). */
double moert_log(double x) {
    /* (artanh(s) - s) / s^3 in powers of s^2 */
    static const double tail[] = {1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11,
                                  1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
    if (!(x > 0.0 && x < INFINITY))
        return x == 0.0 ? -INFINITY : x < 0.0 ? NAN : x;
    int n;
    double m = frexp(x, &n);
    if (m < 0x1.6a09e667f3bcdp-1) {
        m *= 2.0;
        n--;
    }
    const double s = (m - 1.0) / (m + 1.0), square = s * s;
    const double log_m = 2.0 * (s + s * square * SERIES(tail, square));
    return n * LN_2_HIGH + (log_m + n * LN_2_LOW);
}

double moert_pow(double x, double y) {
    return y == 0.0 ? 1.0 : moert_exp(y * moert_log(x));
}

/* cos(x + quarters pi / 2) */
static double turned_cos(double x, int quarters) {
    static const double cosine[] = {1.0,
                                    -1.0 / 2,
                                    1.0 / 24,
                                    -1.0 / 720,
                                    1.0 / 40320,
                                    -1.0 / 3628800,
                                    1.0 / 479001600,
                                    -1.0 / 87178291200,
                                    1.0 / 20922789888000};
    /* (sin(r) - r) / r^3 in powers of r^2 */
    static const double sine_tail[] = {
        -1.0 / 6,        1.0 / 120,        -1.0 / 5040,         1.0 / 362880,
        -1.0 / 39916800, 1.0 / 6227020800, -1.0 / 1307674368000};
    if (!isfinite(x))
        return NAN;
    double n;
    const double r =
        reduce(x, 0x1.45f306dc9c883p-1, 0x1.921fb54442d18p0, 0x1.1a62633145c07p-54, &n);
    const double square = r * r;
    const int quadrant = (int)((long long)n + quarters) & 3;
    const double value =
        quadrant % 2 == 0 ? SERIES(cosine, square) : r + r * square * SERIES(sine_tail, square);
    return quadrant == 1 || quadrant == 2 ? -value : value;
}

double moert_cos(double x) {
    return turned_cos(x, 0);
}

double moert_sin(double x) {
    return turned_cos(x, 3);
}
