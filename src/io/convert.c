/* Converts elements of a mapped tensor to float32 or int32. Sources may be unaligned. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/phase.h"
#include "io/internal.h"

static float float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* IEEE binary16: sign 1, exponent 5 (bias 15), fraction 10; every value is exact in binary32. */
static float from_f16(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    uint32_t exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
    if (exponent == 0) { /* zero and subnormal: fraction * 2^-24 */
        float magnitude = (float)fraction * 0x1p-24f;
        return sign != 0 ? -magnitude : magnitude;
    }
    uint32_t wide = exponent == 0x1f ? 0xff : exponent + 127 - 15;
    return float_from_bits(sign | wide << 23 | fraction << 13);
}

/* The conversion loop of one source type. The loop does not assume that elements are aligned. */
#define CONVERT(type, expression)                                                                  \
    do {                                                                                           \
        for (size_t i = 0; i < count; i++) {                                                       \
            type value;                                                                            \
            memcpy(&value, source + i * sizeof value, sizeof value);                               \
            out[i] = expression;                                                                   \
        }                                                                                          \
    } while (0)

/* Stores the checksums of the pieces that bytes [first, first + bytes) of a tensor touch. Loads the
 * pages of these pieces first, since an access to bytes that the disk cannot read would end the
 * process. */
static moert_status sum_range(const moert_tensor *tensor, size_t first, size_t bytes) {
    size_t piece = first / MOERT_PIECE_BYTES;
    const size_t begin = piece * MOERT_PIECE_BYTES;
    const size_t end = moert_min(moert_round_up(first + bytes, MOERT_PIECE_BYTES), tensor->bytes);
    while (piece * MOERT_PIECE_BYTES < end && moert_piece_is_summed(&tensor->sums[piece]))
        piece++;
    if (piece * MOERT_PIECE_BYTES >= end)
        return MOERT_OK;
    const char *const data = (const char *)tensor->data + begin;
    const size_t before = (uintptr_t)data % (size_t)sysconf(_SC_PAGESIZE);
    if (madvise((char *)(uintptr_t)data - before, end - begin + before, MADV_POPULATE_READ) != 0 &&
        errno != EINVAL) /* EINVAL: Linux before 5.14 lacks MADV_POPULATE_READ */
        return MOERT_FAIL(ERROR_IO, "%s: tensor '%.200s' cannot be read: %s (is the disk intact?)",
                          tensor->file, tensor->name, strerror(errno));
    moert_pieces_sum(tensor->sums, tensor->bytes, begin, end - begin, data);
    return MOERT_OK;
}

/* Reads elements that lie in few pieces. */
static moert_status read_piece(const moert_tensor *tensor, size_t first, size_t count, float *out) {
    const size_t each = moert_file_type_bytes(tensor->type);
    const unsigned char *source = (const unsigned char *)tensor->data + first * each;
    if (tensor->sums != NULL && count > 0)
        MOERT_TRY(sum_range(tensor, first * each, count * each));
    switch (tensor->type) {
    case MOERT_FILE_F64:
        CONVERT(double, (float)value);
        return MOERT_OK;
    case MOERT_FILE_F32:
        if (count > 0)
            memcpy(out, source, count * sizeof *out);
        return MOERT_OK;
    case MOERT_FILE_F16:
        CONVERT(uint16_t, from_f16(value));
        return MOERT_OK;
    case MOERT_FILE_BF16:
        CONVERT(uint16_t, float_from_bits((uint32_t)value << 16));
        return MOERT_OK;
    default:
        return MOERT_FAIL(
            ERROR_UNSUPPORTED,
            "%s: tensor '%.200s' is %s; float32 is read from F64, F32, F16 and BF16, and "
            "weights from F8_E4M3 with '_scale_inv'",
            tensor->file, tensor->name, moert_file_type_text(tensor->type));
    }
}

#define INTEGER_TYPES(X)                                                                           \
    X(I64, int64_t)                                                                                \
    X(I32, int32_t) X(I16, int16_t) X(I8, int8_t) X(U32, uint32_t) X(U16, uint16_t) X(U8, uint8_t)

/* Element `index` of an integer tensor; values above int64 become INT64_MAX. */
static int64_t load_integer(const moert_tensor *tensor, size_t index) {
    const unsigned char *source =
        (const unsigned char *)tensor->data + index * moert_file_type_bytes(tensor->type);
    switch (tensor->type) {
#define LOAD_INTEGER(name, type)                                                                   \
    case MOERT_FILE_##name: {                                                                      \
        type value;                                                                                \
        memcpy(&value, source, sizeof value);                                                      \
        return value;                                                                              \
    }
        INTEGER_TYPES(LOAD_INTEGER)
#undef LOAD_INTEGER
    default: { /* U64 */
        uint64_t value;
        memcpy(&value, source, sizeof value);
        return value > INT64_MAX ? INT64_MAX : (int64_t)value;
    }
    }
}

moert_status moert_tensor_read_i32(const moert_tensor *tensor, size_t first, size_t count,
                                   int32_t *out) {
    MOERT_TRY(moert_check_elements(tensor->file, tensor->name, tensor->elements, first, count));
    if (tensor->type < MOERT_FILE_I64 || tensor->type > MOERT_FILE_U8)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "%s: tensor '%.200s' is %s, not an integer type",
                          tensor->file, tensor->name, moert_file_type_text(tensor->type));
    for (size_t i = 0; i < count; i++) {
        int64_t value = load_integer(tensor, first + i);
        if (value < INT32_MIN || value > INT32_MAX)
            return MOERT_FAIL(ERROR_FORMAT,
                              "%s: tensor '%.200s': element %zu is %lld, which does not fit int32",
                              tensor->file, tensor->name, first + i, (long long)value);
    }
    for (size_t i = 0; i < count; i++)
        out[i] = (int32_t)load_integer(tensor, first + i);
    return MOERT_OK;
}

moert_status moert_tensor_read_f32(const moert_tensor *tensor, size_t first, size_t count,
                                   float *out) {
    enum { TOGETHER = 4 * MOERT_PIECE_BYTES }; /* elements per read: whole pieces in any dtype */
    MOERT_TRY(moert_check_elements(tensor->file, tensor->name, tensor->elements, first, count));
    size_t done = 0;
    do {
        const size_t at = first + done;
        const size_t some = moert_min(TOGETHER - at % TOGETHER, count - done);
        moert_phase_tick(); /* shows progress: reading a large model takes long */
        MOERT_TRY(read_piece(tensor, at, some, out + done));
        done += some;
    } while (done < count);
    return MOERT_OK;
}
