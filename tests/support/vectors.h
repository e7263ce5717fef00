/*
 * Float vectors on a device, for the tests of device operations: random inputs, buffers with guard
 * values behind their end, comparison with float64 oracles. Failures end the running cmocka test.
 */
#ifndef MOERT_TESTS_VECTORS_H
#define MOERT_TESTS_VECTORS_H

#include <stddef.h>

#include "device/device.h"

/* Opens the device of MOERT_DEVICE; group setup and teardown of cmocka, state = the device. */
int vectors_open_device(void **state);
int vectors_close_device(void **state);

/* Fails the test with the library's message unless `status` is MOERT_OK. */
void vectors_expect_ok(moert_status status);

/* n normally distributed numbers of stream `name`, exact in float32; to be freed. */
double *vectors_random(const char *name, size_t n);

/* A buffer of n floats followed by guard values; NULL values give a buffer of NaN. */
moert_buffer *vectors_upload(moert_device *device, const double *values, size_t n);

/* The n floats of a buffer of vectors_upload, to be freed; fails if a guard value has changed. */
float *vectors_download(const moert_buffer *buffer, size_t n);

/*
 * Fails unless |got - want| <= tolerance * max(|want|, root mean square of all want, 0.01),
 * everywhere.
 */
void vectors_expect_near(const char *what, const float *got, const double *want, size_t n,
                         double tolerance);

/* Fails unless the n floats are the same bit for bit. */
void vectors_expect_same(const char *what, const float *got, const float *want, size_t n);

/*
 * Compares gradient[n] with central differences in float64 of loss(context) with respect to
 * value[n], at every `stride`-th element.
 */
void vectors_expect_gradient(const char *what, const float *gradient, double *value, size_t n,
                             size_t stride, double (*loss)(void *context), void *context);

#endif
