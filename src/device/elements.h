/* Float32 or bf16 elements of buffers, as floats on the host. */
#pragma once

#include <stddef.h>

#include "base/error.h"
#include "moert/device.h"
#include "moert/formats.h"

/* Float32 or bf16 elements of a buffer, from element `at` on. */
typedef struct moert_elements {
    moert_buffer *buffer;
    moert_dtype type; /* F32 or BF16 */
    size_t at;
} moert_elements;

/* These calls copy elements [first, first + count) to or from floats on the host, and block. bf16
 * elements are rounded to nearest even. Errors: those of moert_buffer_read and
 * moert_buffer_write. */
moert_status moert_elements_read(const moert_elements *elements, size_t first, size_t count,
                                 float *values);
moert_status moert_elements_write(const moert_elements *elements, size_t first, size_t count,
                                  const float *values);
