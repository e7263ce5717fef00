/* Checks of what operations on device buffers are given. Each fails with ERROR_USAGE. */
#pragma once

#include "device/device.h"

/* `buffer` holds `lines` lines of `width` elements that are `stride` elements of `bytes` bytes
 * apart. */
moert_status moert_check_buffer(const char *name, const moert_buffer *buffer, size_t lines,
                                size_t width, size_t stride, size_t bytes);

/* A description's size is that of its initialiser. */
moert_status moert_check_size(const char *initialiser, size_t size, size_t expected);
