/* Float vectors on a device, for the tests of device operations. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/config.h"
#include "base/rng.h"
#include "support/vectors.h"

enum { GUARDS = 24, SEED = 1 };
static const float guard_value = -7.25e11f;
static const double gradient_tolerance = 2e-5;
static const double least_magnitude = 0.01; /* inputs are of magnitude 1; less may cancel to 0 */

int vectors_open_device(void **state) {
    moert_device *device;
    if (moert_device_open(moert_config_get()->device, NULL, 0, &device) != MOERT_OK)
        return -1;
    *state = device;
    return 0;
}

int vectors_close_device(void **state) {
    moert_device_close(*state);
    return 0;
}

void vectors_expect_ok(moert_status status) {
    if (status != MOERT_OK)
        fail_msg("%s", moert_last_error());
}

double *vectors_random(const char *name, size_t n) {
    double *values = calloc(n + 1, sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < n; i++)
        values[i] = (float)moert_rng_normal(SEED, moert_rng_stream(name), i);
    return values;
}

moert_buffer *vectors_upload(moert_device *device, const double *values, size_t n) {
    moert_buffer *buffer;
    float *all = calloc(n + GUARDS, sizeof *all);
    assert_non_null(all);
    for (size_t i = 0; i < n + GUARDS; i++)
        all[i] = i >= n ? guard_value : values != NULL ? (float)values[i] : NAN;
    vectors_expect_ok(moert_buffer_create(device, (n + GUARDS) * sizeof *all, &buffer));
    vectors_expect_ok(moert_buffer_write(buffer, 0, all, (n + GUARDS) * sizeof *all));
    free(all);
    return buffer;
}

float *vectors_download(const moert_buffer *buffer, size_t n) {
    float *all = calloc(n + GUARDS, sizeof *all);
    assert_non_null(all);
    vectors_expect_ok(moert_buffer_read(buffer, 0, all, (n + GUARDS) * sizeof *all));
    for (size_t i = n; i < n + GUARDS; i++)
        if (all[i] != guard_value)
            fail_msg("float %zu past the end became %g", i - n, (double)all[i]);
    return all;
}

void vectors_expect_near(const char *what, const float *got, const double *want, size_t n,
                         double tolerance) {
    double squares = 0;
    for (size_t i = 0; i < n; i++)
        squares += want[i] * want[i];
    const double typical = fmax(least_magnitude, n > 0 ? sqrt(squares / (double)n) : 0);
    for (size_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance * fmax(fabs(want[i]), typical)))
            fail_msg("%s[%zu of %zu] is %.9g, not %.9g", what, i, n, (double)got[i], want[i]);
}

void vectors_expect_same(const char *what, const float *got, const float *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("%s[%zu of %zu] is %.9g, not bit for bit %.9g", what, i, n, (double)got[i],
                     (double)want[i]);
}

void vectors_expect_gradient(const char *what, const float *gradient, double *value, size_t n,
                             size_t stride, double (*loss)(void *context), void *context) {
    const double step = 1e-4;
    const size_t samples = (n + stride - 1) / stride;
    float *got = calloc(samples + 1, sizeof *got);
    double *want = calloc(samples + 1, sizeof *want);
    assert_true(got != NULL && want != NULL);
    for (size_t i = 0; i < samples; i++) {
        const double kept = value[i * stride];
        value[i * stride] = kept + step;
        const double above = loss(context);
        value[i * stride] = kept - step;
        const double below = loss(context);
        value[i * stride] = kept;
        got[i] = gradient[i * stride];
        want[i] = (above - below) / (2 * step);
    }
    vectors_expect_near(what, got, want, samples, gradient_tolerance);
    free(got);
    free(want);
}
