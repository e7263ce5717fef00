// run: check=1 all=1san
/* The host's elementary functions against the C library's in long double. */
#include "base/elementary.h"
#include "base/rng.h"
#include "support/test.h"

enum { COUNT = 200000 };

/* Uniform in [low, high). */
static double draw(double low, double high, size_t i) {
    return low + (high - low) * moert_rng_uniform(7, 1, i);
}

/* The distance from `want` in units of a float64 in the last place. */
static double error_of(double got, long double want) {
    if (want == 0.0L)
        return got == 0.0 ? 0.0 : INFINITY;
    return (double)(fabsl((long double)got - want) / ldexpl(1.0L, (int)ilogbl(want) - 52));
}

typedef struct row {
    const char *name;
    double (*function)(double);
    long double (*oracle)(long double);
    double low, high, bound;
} row;

TEST(test_functions_are_within_their_bounds) {
    static const row rows[] = {
        {"exp", moert_exp, expl, -700.0, 709.0, 1.5}, {"exp", moert_exp, expl, -1.0, 1.0, 1.5},
        {"log", moert_log, logl, 0.0, 1e-300, 2.0},   {"log", moert_log, logl, 0.0, 1e9, 2.0},
        {"log", moert_log, logl, 0.5, 2.0, 2.5},      {"cos", moert_cos, cosl, 0.0, 6.3, 2.0},
        {"cos", moert_cos, cosl, -1e9, 1e9, 2.0},     {"sin", moert_sin, sinl, -6.3, 6.3, 2.0},
        {"sin", moert_sin, sinl, -1e9, 1e9, 2.0},
    };
    for (size_t r = 0; r < MOERT_COUNT(rows); r++) {
        double worst = 0.0;
        for (size_t i = 0; i < COUNT; i++) {
            const double x = draw(rows[r].low, rows[r].high, i);
            worst = fmax(worst, error_of(rows[r].function(x), rows[r].oracle((long double)x)));
        }
        print_message("# %s in [%g, %g): within %.2f ulp\n", rows[r].name, rows[r].low,
                      rows[r].high, worst);
        assert_true(worst <= rows[r].bound);
    }
}

TEST(test_powers_of_frequencies_and_decays_are_far_within_float32) {
    for (size_t i = 0; i < COUNT; i++) {
        const double theta = draw(1.0, 5e6, i), exponent = draw(0.0, 1.0, i + 1);
        const long double want = powl((long double)theta, (long double)exponent);
        assert_true(fabsl((long double)moert_pow(theta, exponent) - want) <= 1e-14L * want);
        const double beta = 1.0 - draw(0.0, 0.5, i), steps = (double)(i + 1);
        const long double rest = 1.0L - powl((long double)beta, (long double)steps);
        assert_true(fabsl(1.0L - (long double)moert_pow(beta, steps) - rest) <= 3e-16L);
    }
}

TEST(test_special_values) {
    assert_true(moert_exp(0.0) == 1.0 && moert_exp(-INFINITY) == 0.0);
    assert_true(isinf(moert_exp(INFINITY)) && isinf(moert_exp(710.0)) && isnan(moert_exp(NAN)));
    assert_true(moert_exp(-745.0) == 0x1p-1074 && moert_exp(-746.0) == 0.0);
    assert_true(moert_log(1.0) == 0.0 && moert_log(0.0) == -INFINITY && isnan(moert_log(-1.0)));
    assert_true(isinf(moert_log(INFINITY)) && isnan(moert_log(NAN)));
    assert_true(moert_pow(0.0, 3.0) == 0.0 && moert_pow(0.0, 0.0) == 1.0);
    assert_true(moert_pow(1.0, 1e9) == 1.0 && moert_pow(5.0, 0.0) == 1.0);
    assert_true(moert_cos(0.0) == 1.0 && moert_sin(0.0) == 0.0);
    assert_true(isnan(moert_cos(INFINITY)) && isnan(moert_sin(NAN)));
}

TESTS(NULL, NULL)
