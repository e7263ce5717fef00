#include "support/ops.h"

#include <stdlib.h>
#include <string.h>

#include "base/config.h"

static moert_device *device;

int moert_test_open(void **state) {
    (void)state;
    return moert_device_open(moert_config_get()->device, "", 0, &device) == MOERT_OK ? 0 : -1;
}

int moert_test_close(void **state) {
    (void)state;
    moert_device_close(device);
    return 0;
}

moert_device *moert_test_device(void) {
    return device;
}

void moert_test_backend(const char *name) {
    setenv("MOERT_BACKEND", name, 1);
    moert_config_reload();
}

moert_buffer *moert_test_upload(const void *data, size_t count) {
    moert_buffer *buffer;
    MOERT_TEST_OK(moert_buffer_create(device, count * 4, &buffer));
    MOERT_TEST_OK(moert_buffer_write(buffer, 0, data, count * 4));
    return buffer;
}

void moert_test_download(moert_buffer *buffer, void *data, size_t count) {
    MOERT_TEST_OK(moert_buffer_read(buffer, 0, data, count * 4));
    moert_buffer_destroy(buffer);
}

void moert_test_same_bits(const char *what, const float *got, const float *want, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (memcmp(&got[i], &want[i], sizeof got[i]) != 0)
            fail_msg("%s: element %zu of %zu is %.9g (%a), not %.9g (%a)", what, i, count,
                     (double)got[i], (double)got[i], (double)want[i], (double)want[i]);
}
