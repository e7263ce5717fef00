/* Checks of the arguments of operations on device buffers. */
#include "device/check.h"

moert_status moert_check_buffer(const char *name, const moert_buffer *buffer, size_t lines,
                                size_t width, size_t stride, size_t bytes) {
    size_t last, elements;
    if (lines == 0 || width == 0)
        return MOERT_OK;
    if (buffer == NULL)
        return MOERT_FAIL(ERROR_USAGE, "%s[%zu,%zu] is missing", name, lines, width);
    if (stride < width)
        return MOERT_FAIL(ERROR_USAGE,
                          "the stride of %s, %zu elements, is below the row width of %zu elements",
                          name, stride, width);
    if (__builtin_mul_overflow(lines - 1, stride, &last) ||
        __builtin_add_overflow(last, width, &elements) ||
        elements > moert_buffer_bytes(buffer) / bytes)
        return MOERT_FAIL(ERROR_USAGE,
                          "%s has %zu bytes, too few for %zu rows of %zu elements of %zu bytes at "
                          "stride %zu",
                          name, moert_buffer_bytes(buffer), lines, width, bytes, stride);
    return MOERT_OK;
}
