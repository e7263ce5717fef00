/* Fake quantization of the reference backend, block by block (quant/fake_quantize.h). */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/rng.h"
#include "device/mapping.h"
#include "quant/backend.h"
#include "quant/reference/block_scale.h"

enum { LARGEST_BLOCK = 128 };

/* The operation on host memory. */
typedef struct job {
    const moert_fake_quantize *op;
    uint32_t whole[1]; /* the value of `ends` if op has no groups */
    const uint32_t *ends, *draws;
    const void *x;
    uint16_t *along, *down;
    float values[LARGEST_BLOCK * LARGEST_BLOCK]; /* of the current block, row by row */
} job;

/* The elements that share one scale: those of `rows` rows and `columns` columns. */
typedef struct block {
    size_t group, row, rows, column, columns;
} block;

static float x_at(const job *j, size_t row, size_t column) {
    return moert_row_value(j->x, j->op->x_type, row * j->op->x_stride + column);
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
    moert_quantizer powers = *how;
    if (how->format == MOERT_FORMAT_NVFP4)
        return scale_nvfp4(amax);
    if (how->format == MOERT_FORMAT_FP8_BLOCK)
        powers.format = MOERT_FORMAT_MXFP8_E4M3;
    moert_block_scale s = moert_block_scale_of(&powers, amax, NULL, 1.0f);
    s.value = moert_e8m0_decode((uint8_t)s.code);
    return s;
}

/* Loads a block, rotates it if that is wanted, and returns its amax. */
static float load(job *j, const block *b, bool down) {
    const size_t count = b->rows * b->columns;
    float amax = 0.0f;
    for (size_t i = 0; i < count; i++)
        j->values[i] = x_at(j, b->row + i / b->columns, b->column + i % b->columns);
    if (down && j->op->how.hadamard && b->rows == MOERT_ROTATED)
        moert_block_rotate(j->values);
    for (size_t i = 0; i < count; i++)
        moert_raise_amax(&amax, j->values[i]);
    return amax;
}

/* The bits of x / scale in the format's element dtype. */
static uint32_t encode(const job *j, const block *b, bool down, float scaled, size_t row,
                       size_t column) {
    const moert_quantizer *how = &j->op->how;
    if (how->rounding != MOERT_ROUNDING_STOCHASTIC)
        return moert_dtype_encode(moert_format_element(how->format), scaled);
    const size_t vectors = moert_ceil_div(j->op->columns, 16);
    uint32_t draw[] = {2 * (uint32_t)b->group, b->group > 0 ? 0u - j->ends[b->group - 1] : 0u};
    if (j->draws != NULL)
        memcpy(draw, &j->draws[j->op->draws_at + 2 * b->group], sizeof draw);
    const uint32_t stream = draw[0] + j->op->stream + (down && how->axis != MOERT_AXIS_TILE),
                   drawn = (uint32_t)row + draw[1];
    const moert_random random =
        moert_rng_block(how->seed, stream, drawn * (uint64_t)vectors + column / 16);
    return moert_dtype_encode_stochastic(
        scaled, (uint8_t)(random.word[column % 16 / 4] >> 8 * (column % 4)));
}

/* Rounds a block to `down` or, if `down` is false, to `along`. */
static void round_block(job *j, const block *b, bool down) {
    const moert_dtype element = moert_format_element(j->op->how.format);
    const moert_block_scale s = scale_of(&j->op->how, load(j, b, down));
    for (size_t i = 0; i < b->rows * b->columns; i++) {
        const size_t row = b->row + i / b->columns, column = b->column + i % b->columns;
        const uint32_t code = s.zero ? 0 : encode(j, b, down, j->values[i] * s.factor, row, column);
        const float value = moert_float_quiet(moert_dtype_decode(element, code) * s.value);
        (down ? j->down : j->along)[row * j->op->columns + column] =
            (uint16_t)moert_dtype_encode(MOERT_DTYPE_BF16, value);
    }
}

/* Rounds the rows of a group in blocks of up to height x width elements. */
static void round_group(job *j, size_t group, size_t height, size_t width, bool down) {
    const size_t end = j->ends[group], columns = j->op->columns;
    for (size_t r = group > 0 ? j->ends[group - 1] : 0; r < end; r += height)
        for (size_t c = 0; c < columns; c += width)
            round_block(
                j, &(block){group, r, moert_min(height, end - r), c, moert_min(width, columns - c)},
                down);
}

moert_status moert_reference_fake_quantize(const moert_fake_quantize *op) {
    const size_t size = moert_format_block(op->how.format);
    const bool tiles = op->how.axis == MOERT_AXIS_TILE;
    job j = {.op = op, .whole = {(uint32_t)op->groups.rows}};
    moert_mapping maps;
    MOERT_TRY(MOERT_MAP(&maps, {op->groups.ends, &j.ends}, {op->x, &j.x}, {op->draws, &j.draws},
                        {op->along, &j.along}, {op->down, &j.down}));
    if (j.ends == NULL)
        j.ends = j.whole;
    const moert_status status = moert_check_ends(&op->groups, j.ends);
    for (size_t g = 0; status == MOERT_OK && g < op->groups.count; g++) {
        if (op->along != NULL)
            round_group(&j, g, tiles ? size : 1, size, false);
        if (op->down != NULL)
            round_group(&j, g, size, tiles ? size : 1, true);
    }
    return moert_unmap_all(&maps, status);
}
