/* Copies float32 or bf16 elements of buffers to and from floats on the host. */
#include "device/elements.h"

#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"

/* Widens bf16 elements to values[count], in place: the elements lie in the second half of the
 * memory of `values`. */
static void decode(float *values, size_t count) {
    const char *from = (const char *)values + count * sizeof(uint16_t);
    for (size_t i = 0; i < count; i++) {
        uint16_t code;
        memcpy(&code, from + i * sizeof code, sizeof code);
        values[i] = moert_float_from_bits((uint32_t)code << 16);
    }
}

moert_status moert_elements_read(const moert_elements *elements, size_t first, size_t count,
                                 float *values) {
    const size_t size = moert_dtype_bits(elements->type) / 8, bytes = count * size;
    char *to = (char *)values + count * sizeof *values - bytes;
    MOERT_TRY(moert_buffer_read(elements->buffer, (elements->at + first) * size, to, bytes));
    if (elements->type == MOERT_DTYPE_BF16)
        decode(values, count);
    return MOERT_OK;
}

static moert_status write_bf16(const moert_elements *elements, size_t first, size_t count,
                               const float *values) {
    enum { PIECE = 4096 };
    uint16_t code[PIECE];
    for (size_t done = 0, part; done < count; done += part) {
        part = moert_min(count - done, PIECE);
        for (size_t i = 0; i < part; i++)
            code[i] = (uint16_t)moert_dtype_encode(MOERT_DTYPE_BF16, values[done + i]);
        MOERT_TRY(moert_buffer_write(elements->buffer, (elements->at + first + done) * sizeof *code,
                                     code, part * sizeof *code));
    }
    return MOERT_OK;
}

moert_status moert_elements_write(const moert_elements *elements, size_t first, size_t count,
                                  const float *values) {
    if (elements->type == MOERT_DTYPE_BF16)
        return write_bf16(elements, first, count, values);
    return moert_buffer_write(elements->buffer, (elements->at + first) * sizeof *values, values,
                              count * sizeof *values);
}
