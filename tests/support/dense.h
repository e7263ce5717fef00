/* What the tests of dense operations share: one device, buffers from arrays, random values. */
#ifndef TESTS_SUPPORT_DENSE_H
#define TESTS_SUPPORT_DENSE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/device.h"

/* Group fixture; the device serves all tests of a program. */
extern moert_device *test_device;
int open_test_device(void **state);
int close_test_device(void **state);

/* Asserts success, and prints the last error otherwise. */
#define ASSERT_OK(call)                                                                            \
    do {                                                                                           \
        if ((call) != MOERT_OK)                                                                    \
            fail_msg("%s: %s", #call, moert_last_error());                                         \
    } while (0)

/* A buffer with a copy of `bytes` of host memory, followed by a guard. */
moert_buffer *upload(const void *source, size_t bytes);
/* The buffer's content as a new array, guard checked; to be freed. */
void *download(const moert_buffer *buffer, size_t bytes);
/* A guarded buffer of n floats, all NaN. */
moert_buffer *unset_floats(size_t n);

/* n floats, uniform in [-scale, scale), from stream `stream`; to be freed. */
float *random_floats(size_t n, float scale, uint64_t stream);
/* malloc that cannot fail. */
void *test_alloc(size_t bytes);

void assert_same_bits(const float *a, const float *b, size_t n);
/* |got - want| <= absolute + relative * |want|, element by element. */
void assert_close(const float *got, const double *want, size_t n, double absolute, double relative);

#endif
