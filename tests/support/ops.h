/* What the tests of device operations share: one device per program, host arrays to and from it. */
#ifndef MOERT_TESTS_SUPPORT_OPS_H
#define MOERT_TESTS_SUPPORT_OPS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/device.h"

/* Fixtures of a test group: open the device that MOERT_DEVICE names, and close it. */
int moert_test_open(void **state);
int moert_test_close(void **state);
moert_device *moert_test_device(void);

/* Makes `name` the backend of the calls that follow. */
void moert_test_backend(const char *name);

/* A buffer with the content of data[count] (4 bytes each). */
moert_buffer *moert_test_upload(const void *data, size_t count);

/* Reads data[count] back and destroys the buffer. */
void moert_test_download(moert_buffer *buffer, void *data, size_t count);

/* Fails, with the message of the last error, unless `call` succeeds. */
#define MOERT_TEST_OK(call)                                                                        \
    do {                                                                                           \
        if ((call) != MOERT_OK)                                                                    \
            fail_msg("%s: %s", #call, moert_last_error());                                         \
    } while (0)

/* Compares bits, NaN included, and names the first difference. */
void moert_test_same_bits(const char *what, const float *got, const float *want, size_t count);

#endif
