/* Fake quantization of the reference backend, block by block (quant/fake_quantize.h). */
#include <float.h>
#include <math.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "device/mapping.h"
#include "quant/backend.h"
#include "quant/reference/block_scale.h"

enum { LARGEST_BLOCK = 128 };

/* The operation on host memory. */
typedef struct job {
    const moert_fake_quantize *op;
    uint32_t whole[1]; /* the value of `ends` if op has no groups */
    const uint32_t *ends;
    const void *x;
    uint16_t *along, *down;
} job;

static float x_at(const job *j, size_t row, size_t column) {
    const size_t at = row * j->op->x_stride + column;
    return j->op->x_type == MOERT_DTYPE_F32
               ? ((const float *)j->x)[at]
               : moert_dtype_decode(MOERT_DTYPE_BF16, ((const uint16_t *)j->x)[at]);
}

/* Raises *amax to |x|; a NaN stays. */
static void raise_to(float *amax, float x) {
    if (!isnan(*amax) && (isnan(x) || fabsf(x) > *amax))
        *amax = moert_float_quiet(fabsf(x));
}

/* NVFP4's scale without a global one (quant/fake_quantize.h). */
static moert_block_scale scale_nvfp4(float amax) {
    int exponent;
    const float t = fminf(amax, FLT_MAX) * (1.0f / 6.0f);
    if (isnan(amax))
        return (moert_block_scale){.value = moert_float_quiet(amax)};
    if (t < FLT_MIN)
        return (moert_block_scale){.zero = true};
    const float m = frexpf(t, &exponent); /* in [1/2, 1): 16 m has the 4 bits before the point */
    const float scale = ldexpf(nearbyintf(16.0f * m), exponent - 4);
    return (moert_block_scale){.value = scale, .factor = 1.0f / scale};
}

static moert_block_scale scale_of(const moert_quantizer *how, float amax) {
    moert_block_scale s;
    if (how->format == MOERT_FORMAT_NVFP4)
        return scale_nvfp4(amax);
    s = moert_block_scale_of(how, amax, NULL, 1.0f);
    if (how->format != MOERT_FORMAT_FP8_BLOCK)
        s.value = moert_e8m0_decode((uint8_t)s.code);
    return s;
}

/* Rounds the block of `count` elements that begins at (row, column) and lies along the row or,
 * with `down`, along the column. */
static void round_block(const job *j, size_t row, size_t column, size_t count, bool down) {
    const moert_dtype element = moert_format_element(j->op->how.format);
    float x[LARGEST_BLOCK], amax = 0.0f;
    for (size_t i = 0; i < count; i++) {
        x[i] = x_at(j, down ? row + i : row, down ? column : column + i);
        raise_to(&amax, x[i]);
    }
    const moert_block_scale s = scale_of(&j->op->how, amax);
    for (size_t i = 0; i < count; i++) {
        const float scaled = s.divides ? x[i] / s.first / s.second : x[i] * s.factor;
        const uint32_t code = s.zero ? 0 : moert_dtype_encode(element, scaled);
        const float value = moert_float_quiet(moert_dtype_decode(element, code) * s.value);
        const size_t at = (down ? row + i : row) * j->op->columns + (down ? column : column + i);
        (down ? j->down : j->along)[at] = (uint16_t)moert_dtype_encode(MOERT_DTYPE_BF16, value);
    }
}

static void round_group(const job *j, size_t start, size_t end) {
    const size_t block = moert_format_block(j->op->how.format), columns = j->op->columns;
    for (size_t r = start; j->along != NULL && r < end; r++)
        for (size_t c = 0; c < columns; c += block)
            round_block(j, r, c, moert_min(block, columns - c), false);
    for (size_t r = start; j->down != NULL && r < end; r += block)
        for (size_t c = 0; c < columns; c++)
            round_block(j, r, c, moert_min(block, end - r), true);
}

moert_status moert_reference_fake_quantize(const moert_fake_quantize *op) {
    job j = {.op = op, .whole = {(uint32_t)op->groups.rows}};
    moert_mapping maps;
    MOERT_TRY(MOERT_MAP(&maps, {op->groups.ends, &j.ends}, {op->x, &j.x}, {op->along, &j.along},
                        {op->down, &j.down}));
    if (j.ends == NULL)
        j.ends = j.whole;
    const moert_status status = moert_check_ends(&op->groups, j.ends);
    for (size_t g = 0, start = 0; status == MOERT_OK && g < op->groups.count; start = j.ends[g++])
        round_group(&j, start, j.ends[g]);
    return moert_unmap_all(&maps, status);
}
