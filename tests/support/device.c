/* The device of test.h and its guarded buffers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "support/test.h"

enum { GUARD_BYTES = 128, GUARD_VALUE = 0xA5 };

moert_device *test_device;

int open_test_device(void **state) {
    (void)state;
    if (moert_device_open(moert_config_get()->device, "", 0, &test_device) == MOERT_OK)
        return 0;
    print_error("%s\n", moert_last_error());
    return -1;
}

int close_test_device(void **state) {
    (void)state;
    moert_device_close(test_device);
    test_device = NULL;
    return 0;
}

bool has_hopper(const char *otherwise) {
    const bool has = moert_device_describe(test_device)->nvidia == 90;
    if (!has)
        print_message("# no tensor cores of Hopper's: %s\n", otherwise);
    return has;
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

moert_buffer *upload_doubles(const double *source, size_t n) {
    float *values = test_alloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++)
        values[i] = (float)source[i];
    moert_buffer *buffer = upload(values, n * sizeof *values);
    free(values);
    return buffer;
}

moert_buffer *unset_floats(size_t n) {
    float *unset = test_alloc(n * sizeof *unset);
    for (size_t i = 0; i < n; i++)
        unset[i] = NAN;
    moert_buffer *buffer = upload(unset, n * sizeof *unset);
    free(unset);
    return buffer;
}

void download_into(const moert_buffer *buffer, void *target, size_t bytes) {
    unsigned char guard[GUARD_BYTES];
    ASSERT_OK(moert_buffer_read(buffer, 0, target, bytes));
    ASSERT_OK(moert_buffer_read(buffer, bytes, guard, sizeof guard));
    for (size_t i = 0; i < sizeof guard; i++)
        if (guard[i] != GUARD_VALUE)
            fail_msg("byte %zu past the end of a buffer of %zu bytes was written", i, bytes);
}

void *download(const moert_buffer *buffer, size_t bytes) {
    void *memory = test_alloc(bytes);
    download_into(buffer, memory, bytes);
    return memory;
}
