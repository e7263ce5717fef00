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

/* NVFP4's global scale of rows [row, row + rows). */
static float power_global(const job *j, size_t row, size_t rows) {
    float amax = 0.0f;
    int exponent; /* amax is m * 2^exponent with m in [1/2, 1); 2688 = 0.65625 * 2^12 */
    for (size_t r = row; r < row + rows; r++)
        for (size_t c = 0; c < j->op->columns; c++)
            raise_to(&amax, x_at(j, r, c));
    if (amax == 0.0f)
        return 1.0f;
    const double m =
        frexp(isnan(amax) || amax > FLT_MAX ? (double)FLT_MAX : (double)amax, &exponent);
    const int up = exponent - 12 + (m > 0.65625);
    return ldexpf(1.0f, up > -126 ? up : -126);
}

/* Rounds the block of `count` elements that begins at (row, column) and lies along the row or,
 * with `down`, along the column. */
static void round_block(const job *j, float global, size_t row, size_t column, size_t count,
                        bool down) {
    const moert_quantizer *how = &j->op->how;
    const moert_dtype element = moert_format_element(how->format);
    float x[LARGEST_BLOCK], amax = 0.0f;
    for (size_t i = 0; i < count; i++) {
        x[i] = x_at(j, down ? row + i : row, down ? column : column + i);
        raise_to(&amax, x[i]);
    }
    const moert_block_scale s = moert_block_scale_of(how, amax, NULL, global);
    const float scale = how->format == MOERT_FORMAT_FP8_BLOCK ? s.value
                        : how->format == MOERT_FORMAT_NVFP4
                            ? moert_dtype_decode(MOERT_DTYPE_E4M3, s.code) * global
                            : moert_e8m0_decode((uint8_t)s.code);
    for (size_t i = 0; i < count; i++) {
        const float scaled = s.divides ? x[i] / s.first / s.second : x[i] * s.factor;
        const uint32_t code = s.zero ? 0 : moert_dtype_encode(element, scaled);
        const float value = moert_float_quiet(moert_dtype_decode(element, code) * scale);
        const size_t at = (down ? row + i : row) * j->op->columns + (down ? column : column + i);
        (down ? j->down : j->along)[at] = (uint16_t)moert_dtype_encode(MOERT_DTYPE_BF16, value);
    }
}

static void round_group(const job *j, size_t start, size_t end) {
    const size_t block = moert_format_block(j->op->how.format), columns = j->op->columns;
    const bool nvfp4 = j->op->how.format == MOERT_FORMAT_NVFP4;
    for (size_t r = start; j->along != NULL && r < end; r++) {
        const float global = nvfp4 ? power_global(j, r, 1) : 1.0f;
        for (size_t c = 0; c < columns; c += block)
            round_block(j, global, r, c, moert_min(block, columns - c), false);
    }
    for (size_t r = start; j->down != NULL && r < end; r += block) {
        const size_t rows = moert_min(block, end - r);
        const float global = nvfp4 ? power_global(j, r, rows) : 1.0f;
        for (size_t c = 0; c < columns; c++)
            round_block(j, global, r, c, rows, true);
    }
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
