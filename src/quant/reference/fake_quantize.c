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
    float *amax;
    const float *global;
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

/* Rounds the block of `count` elements that begins at (row, column) and lies along the row or,
 * with `down`, along the column. */
static void round_block(const job *j, size_t group, size_t row, size_t column, size_t count,
                        bool down) {
    const moert_quantizer *how = &j->op->how;
    const moert_dtype element = moert_format_element(how->format);
    const float global = j->global != NULL ? j->global[how->group_scales ? group : 0] : 1.0f;
    float x[LARGEST_BLOCK], amax = 0.0f;
    for (size_t i = 0; i < count; i++) {
        x[i] = x_at(j, down ? row + i : row, down ? column : column + i);
        raise_to(&amax, x[i]);
    }
    const moert_block_scale s = moert_block_scale_of(how, amax, NULL, global);
    const float scale = how->format == MOERT_FORMAT_FP8_BLOCK ? s.value
                        : how->format == MOERT_FORMAT_NVFP4
                            ? moert_dtype_decode(MOERT_DTYPE_E4M3, s.code)
                            : moert_e8m0_decode((uint8_t)s.code);
    for (size_t i = 0; i < count; i++) {
        const float scaled = s.divides ? x[i] / s.first / s.second : x[i] * s.factor;
        const uint32_t code = s.zero ? 0 : moert_dtype_encode(element, scaled);
        const float value = moert_float_quiet(moert_dtype_decode(element, code) * scale * global);
        const size_t at = (down ? row + i : row) * j->op->columns + (down ? column : column + i);
        (down ? j->down : j->along)[at] = (uint16_t)moert_dtype_encode(MOERT_DTYPE_BF16, value);
    }
}

static void round_along(const job *j, size_t group, size_t row) {
    const size_t block = moert_format_block(j->op->how.format), columns = j->op->columns;
    for (size_t c = 0; c < columns; c += block)
        round_block(j, group, row, c, moert_min(block, columns - c), false);
}

static void round_group(const job *j, size_t group, size_t start, size_t end) {
    const size_t block = moert_format_block(j->op->how.format), columns = j->op->columns;
    for (size_t r = start; j->along != NULL && r < end; r++)
        round_along(j, group, r);
    for (size_t r = start; j->down != NULL && r < end; r += block)
        for (size_t c = 0; c < columns; c++)
            round_block(j, group, r, c, moert_min(block, end - r), true);
}

static void measure_group(const job *j, size_t group, size_t start, size_t end) {
    float *amax = &j->amax[j->op->how.group_scales ? group : 0];
    for (size_t r = start; r < end; r++)
        for (size_t c = 0; c < j->op->columns; c++)
            raise_to(amax, x_at(j, r, c));
}

/* Maps the buffers and visits the groups. */
static moert_status each_group(const moert_fake_quantize *op, bool measures) {
    job j = {.op = op, .whole = {(uint32_t)op->groups.rows}};
    const size_t maxima = op->how.group_scales ? op->groups.count : 1;
    moert_mapping maps;
    MOERT_TRY(MOERT_MAP(&maps, {op->groups.ends, &j.ends}, {op->x, &j.x}, {op->amax, &j.amax},
                        {op->global, &j.global}, {op->along, &j.along}, {op->down, &j.down}));
    if (j.ends == NULL)
        j.ends = j.whole;
    const moert_status status = moert_check_ends(&op->groups, j.ends);
    for (size_t i = 0; measures && i < maxima; i++)
        j.amax[i] = 0.0f;
    for (size_t g = 0, start = 0; status == MOERT_OK && g < op->groups.count; start = j.ends[g++])
        (measures ? measure_group : round_group)(&j, g, start, j.ends[g]);
    return moert_unmap_all(&maps, status);
}

moert_status moert_reference_fake_quantize(const moert_fake_quantize *op) {
    return each_group(op, false);
}

moert_status moert_reference_fake_quantize_amax(const moert_fake_quantize *op) {
    return each_group(op, true);
}

moert_status moert_reference_power_globals(const moert_power_globals *op) {
    moert_mapping maps;
    const float *amax;
    float *to;
    MOERT_TRY(MOERT_MAP(&maps, {op->amax, &amax}, {op->to, &to}));
    for (size_t i = 0; i < op->count; i++) {
        int exponent; /* a finite amax is m * 2^exponent with m in [1/2, 1); 2688 = 0.65625 * 2^12 */
        const double m = frexp(fmin((double)amax[i], (double)FLT_MAX), &exponent);
        const int up = exponent - 12 + (m > 0.65625);
        to[i] = isnan(amax[i])    ? moert_float_quiet(amax[i])
                : amax[i] == 0.0f ? 1.0f
                                  : ldexpf(1.0f, up > -126 ? up : -126);
    }
    return moert_unmap_all(&maps, MOERT_OK);
}
