/* What the tests of dense operations share. */
#include "support/dense.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"

enum { GUARD_BYTES = 128, GUARD_VALUE = 0xA5 };

moert_device *test_device;

int open_test_device(void **state) {
    (void)state;
    return moert_device_open("cpu", NULL, 0, &test_device) == MOERT_OK ? 0 : -1;
}

int close_test_device(void **state) {
    (void)state;
    moert_device_close(test_device);
    return 0;
}

void *test_alloc(size_t bytes) {
    void *memory = calloc(1, bytes > 0 ? bytes : 1);
    assert_non_null(memory);
    return memory;
}

moert_buffer *upload(const void *source, size_t bytes) {
    moert_buffer *buffer = NULL;
    unsigned char guard[GUARD_BYTES];
    memset(guard, GUARD_VALUE, sizeof guard);
    ASSERT_OK(moert_buffer_create(test_device, bytes + GUARD_BYTES, &buffer));
    ASSERT_OK(moert_buffer_write(buffer, 0, source, bytes));
    ASSERT_OK(moert_buffer_write(buffer, bytes, guard, sizeof guard));
    return buffer;
}

void *download(const moert_buffer *buffer, size_t bytes) {
    void *memory = test_alloc(bytes);
    unsigned char guard[GUARD_BYTES];
    ASSERT_OK(moert_buffer_read(buffer, 0, memory, bytes));
    ASSERT_OK(moert_buffer_read(buffer, bytes, guard, sizeof guard));
    for (size_t i = 0; i < sizeof guard; i++)
        if (guard[i] != GUARD_VALUE)
            fail_msg("byte %zu past the end of a buffer of %zu bytes was written", i, bytes);
    return memory;
}

moert_buffer *unset_floats(size_t n) {
    float *unset = test_alloc(n * sizeof *unset);
    for (size_t i = 0; i < n; i++)
        unset[i] = NAN;
    moert_buffer *buffer = upload(unset, n * sizeof *unset);
    free(unset);
    return buffer;
}

float *random_floats(size_t n, float scale, uint64_t stream) {
    float *values = test_alloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++)
        values[i] = scale * (float)(2.0 * moert_rng_uniform(17, stream, i) - 1.0);
    return values;
}

void assert_same_bits(const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            fail_msg("element %zu of %zu: %a is not %a", i, n, (double)a[i], (double)b[i]);
}

void assert_close(const float *got, const double *want, size_t n, double absolute,
                  double relative) {
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - want[i]) <= absolute + relative * fabs(want[i])))
            fail_msg("element %zu of %zu: got %.9g, expected %.9g", i, n, (double)got[i], want[i]);
}
