/* Checks of the arguments of operations on device buffers. Each check fails with ERROR_USAGE. */
#pragma once

#include "base/error.h"
#include "moert/device.h"

/* Checks that `buffer` holds `lines` rows of `width` elements of `bytes` bytes each, at a stride of
 * `stride` elements. */
moert_status moert_check_buffer(const char *name, const moert_buffer *buffer, size_t lines,
                                size_t width, size_t stride, size_t bytes);
