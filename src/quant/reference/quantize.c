/* Quantizers of the reference backend, element by element; formulas are in moert/quantize.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "base/rng.h"
#include "device/mapping.h"
#include "quant/backend.h"
#include "quant/reference/block_scale.h"

enum { LARGEST_BLOCK = 128 };

/* The operation on host memory. */
typedef struct job {
    const moert_quantize *op;
    moert_dtype element;
    size_t block;
    moert_quantized_shape shape;
    uint32_t whole[1]; /* the value of `ends` if op has no groups: one group of all rows */
    const uint32_t *ends;
    float *x, *global, *amax, *norm;
    unsigned char *q, *scale;
    float *values; /* values[rows, columns] of the current tile */
} job;

/* The elements that share one scale. The elements belong to group `group` and to row block `block`,
 * counted over all groups. */
typedef struct tile {
    size_t group, block, row, rows, column, columns;
} tile;

/* ---- addresses ---- */

static float *x_at(const job *j, size_t row, size_t column) {
    const size_t runs = j->op->x_runs, columns = j->op->columns;
    return runs > 0 ? &j->x[row * 2 * columns + (column / runs * 2 + 1) * runs + column % runs]
                    : &j->x[row * columns + column];
}

/* The byte of an element; its bits begin at bit *shift. */
static unsigned char *q_at(const job *j, const tile *t, size_t r, size_t c, unsigned *shift) {
    const bool halves = moert_dtype_bits(j->element) == 4;
    size_t line = t->row + r, byte = t->column + c;
    *shift = 0;
    if (j->op->how.axis == MOERT_AXIS_COLUMN) {
        if (halves) {
            line = t->block * (j->block / 2) + r / 2;
            *shift = 4 * (r % 2);
        }
        return j->op->how.transposed ? &j->q[byte * j->shape.q_bytes + line]
                                     : &j->q[line * j->shape.q_bytes + byte];
    }
    if (halves) {
        *shift = 4 * (byte % 2);
        byte /= 2;
    }
    return &j->q[line * j->shape.q_bytes + byte];
}

/* The index of the scale of row r of a tile; all rows of a tile may share one scale. */
static size_t scale_at(const job *j, const tile *t, size_t r) {
    const size_t across = t->column / j->block;
    switch (j->op->how.axis) {
    case MOERT_AXIS_COLUMN:
        return j->op->how.transposed ? t->column * j->shape.scales + t->block
                                     : t->block * j->shape.scales + t->column;
    case MOERT_AXIS_TILE:
        if (j->op->how.format == MOERT_FORMAT_FP8_BLOCK)
            return t->block * j->shape.scales + across;
        return (t->row + r) * j->shape.scales + across;
    default:
        return t->row * j->shape.scales + across;
    }
}

/* ---- values ---- */

/* Loads a tile and returns its amax. */
static float load(const job *j, const tile *t) {
    float amax = 0.0f;
    for (size_t r = 0; r < t->rows; r++)
        for (size_t c = 0; c < t->columns; c++)
            j->values[r * t->columns + c] = *x_at(j, t->row + r, t->column + c);
    if (j->op->how.hadamard && t->rows == MOERT_ROTATED)
        moert_block_rotate(j->values);
    for (size_t i = 0; i < t->rows * t->columns; i++)
        moert_raise_amax(&amax, j->values[i]);
    return amax;
}

/* The 8 random bits of an element; one block of random bits serves 16 columns. */
static uint8_t random_bits(const job *j, size_t row, size_t column) {
    const size_t vectors = moert_ceil_div(j->op->columns, 16);
    const moert_random random =
        moert_rng_block(j->op->how.seed, j->op->how.axis, row * vectors + column / 16);
    return (uint8_t)(random.word[column % 16 / 4] >> 8 * (column % 4));
}

static uint32_t encode(const job *j, const moert_block_scale *s, float x, size_t row,
                       size_t column) {
    if (s->zero)
        return 0;
    const float scaled = s->divides ? x / s->first / s->second : x * s->factor;
    switch (j->op->how.rounding) {
    case MOERT_ROUNDING_BRIDGE:
        return moert_dtype_encode_bridge(scaled);
    case MOERT_ROUNDING_STOCHASTIC:
        return moert_dtype_encode_stochastic(scaled, random_bits(j, row, column));
    default:
        return moert_dtype_encode(j->element, scaled);
    }
}

/* ---- tiles ---- */

static void put_scale(const job *j, const tile *t, const moert_block_scale *s) {
    for (size_t r = 0; r < t->rows; r++)
        if (j->op->how.format == MOERT_FORMAT_FP8_BLOCK)
            memcpy(j->scale + scale_at(j, t, r) * sizeof s->value, &s->value, sizeof s->value);
        else
            j->scale[scale_at(j, t, r)] = (unsigned char)s->code;
}

static void amax_tile(const job *j, const tile *t) {
    float *amax = &j->amax[j->op->how.group_scales ? t->group : 0];
    const float own = load(j, t);
    if (isnan(own) || own > *amax)
        *amax = own;
}

static void quantize_tile(const job *j, const tile *t) {
    const size_t g = j->op->how.group_scales ? t->group : 0;
    const float amax = load(j, t);
    const moert_block_scale s =
        j->norm != NULL
            ? moert_block_scale_normed(j->op->how.format, amax, *j->norm)
            : moert_block_scale_of(&j->op->how, amax, j->amax != NULL ? &j->amax[g] : NULL,
                                   j->global != NULL ? j->global[g] : 1.0f);
    const bool halves = moert_dtype_bits(j->element) == 4;
    const size_t filled =
        halves && j->op->how.axis == MOERT_AXIS_COLUMN ? j->block : t->rows; /* with zeros */
    unsigned shift;
    for (size_t r = 0; r < filled; r++)
        for (size_t c = 0; c < t->columns; c++) {
            const uint32_t code = r < t->rows ? encode(j, &s, j->values[r * t->columns + c],
                                                       t->row + r, t->column + c)
                                              : 0;
            unsigned char *byte = q_at(j, t, r, c, &shift);
            *byte = (unsigned char)(shift > 0 ? (*byte & 0xF) | code << 4 : code);
        }
    put_scale(j, t, &s);
}

static void dequantize_tile(const job *j, const tile *t) {
    const bool halves = moert_dtype_bits(j->element) == 4;
    const moert_format format = j->op->how.format;
    unsigned shift;
    for (size_t r = 0; r < t->rows; r++) {
        const size_t at = scale_at(j, t, r);
        float scale = moert_e8m0_decode(j->scale[at]);
        if (format == MOERT_FORMAT_FP8_BLOCK)
            memcpy(&scale, j->scale + at * sizeof scale, sizeof scale);
        else if (format == MOERT_FORMAT_NVFP4)
            scale = moert_dtype_decode(MOERT_DTYPE_E4M3, j->scale[at]);
        for (size_t c = 0; c < t->columns; c++) {
            const uint32_t byte = *q_at(j, t, r, c, &shift);
            const uint32_t code = halves ? byte >> shift & 0xF : byte;
            float x = moert_dtype_decode(j->element, code) * scale;
            if (format == MOERT_FORMAT_NVFP4 && j->global != NULL)
                x *= j->global[j->op->how.group_scales ? t->group : 0];
            x = moert_float_quiet(x);
            const size_t to = (t->row + r) * j->op->columns + t->column + c;
            if (j->op->x_type == MOERT_DTYPE_F32)
                j->x[to] = x;
            else
                ((uint16_t *)(void *)j->x)[to] = (uint16_t)moert_dtype_encode(j->op->x_type, x);
        }
    }
}

static void each_tile(const job *j, void (*visit)(const job *, const tile *)) {
    const moert_axis axis = j->op->how.axis;
    const size_t high = axis == MOERT_AXIS_ROW ? 1 : j->block;
    const size_t wide = axis == MOERT_AXIS_COLUMN ? 1 : j->block;
    tile t = {0};
    for (size_t start = 0; t.group < j->op->groups.count; start = j->ends[t.group++])
        for (t.row = start; t.row < j->ends[t.group]; t.row += high, t.block++) {
            if (axis != MOERT_AXIS_ROW && t.block >= j->op->blocks)
                return;
            t.rows = moert_min(high, j->ends[t.group] - t.row);
            for (t.column = 0; t.column < j->op->columns; t.column += wide) {
                t.columns = moert_min(wide, j->op->columns - t.column);
                visit(j, &t);
            }
        }
}

/* ---- entries ---- */

static moert_status begin(const moert_quantize *op, moert_mapping *maps, job *j) {
    moert_status status;
    *j = (job){.op = op,
               .element = moert_format_element(op->how.format),
               .block = moert_format_block(op->how.format),
               .shape = moert_quantized_layout(op),
               .whole = {(uint32_t)op->groups.rows}};
    MOERT_TRY(MOERT_MAP(maps, {op->groups.ends, &j->ends}, {op->x, &j->x}, {op->q, &j->q},
                        {op->scale, &j->scale}, {op->global, &j->global}, {op->amax, &j->amax},
                        {op->norm, &j->norm}));
    if (j->ends == NULL)
        j->ends = j->whole;
    if (op->row_bytes > 0)
        j->scale = j->q + moert_ceil_div(op->columns * moert_dtype_bits(j->element), 8);
    MOERT_TRY_OR(unmap, moert_check_ends(&op->groups, j->ends));
    MOERT_TRY_OR(unmap, moert_alloc(&j->values, LARGEST_BLOCK * LARGEST_BLOCK, sizeof *j->values));
    return MOERT_OK;
unmap:
    return moert_unmap_all(maps, status);
}

static moert_status end(moert_mapping *maps, job *j) {
    free(j->values);
    return moert_unmap_all(maps, MOERT_OK);
}

moert_status moert_reference_quantize_amax(const moert_quantize *op) {
    moert_mapping maps;
    job j;
    MOERT_TRY(begin(op, &maps, &j));
    memset(j.amax, 0, (op->how.group_scales ? op->groups.count : 1) * sizeof *j.amax);
    each_tile(&j, amax_tile);
    return end(&maps, &j);
}

moert_status moert_reference_quantize(const moert_quantize *op) {
    moert_mapping maps;
    job j;
    MOERT_TRY(begin(op, &maps, &j));
    for (size_t g = 0; j.amax != NULL && g < (op->how.group_scales ? op->groups.count : 1); g++)
        j.global[g] = moert_nvfp4_global(op->how.nvfp4_rule, j.amax[g]);
    each_tile(&j, quantize_tile);
    return end(&maps, &j);
}

moert_status moert_reference_dequantize(const moert_quantize *op) {
    moert_mapping maps;
    job j;
    MOERT_TRY(begin(op, &maps, &j));
    each_tile(&j, dequantize_tile);
    return end(&maps, &j);
}
