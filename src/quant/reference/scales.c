/* Casts and layouts of the reference backend, byte by byte. */
#include <string.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "device/mapping.h"
#include "quant/backend.h"

/* ---- casts ---- */

static uint32_t load_code(const unsigned char *at, size_t bytes) {
    uint32_t code = 0;
    for (size_t i = 0; i < bytes; i++)
        code |= (uint32_t)at[i] << 8 * i;
    return code;
}

static void store_code(unsigned char *at, size_t bytes, uint32_t code) {
    for (size_t i = 0; i < bytes; i++)
        at[i] = (unsigned char)(code >> 8 * i);
}

moert_status moert_reference_cast(const moert_cast *cast) {
    const size_t from = moert_dtype_bits(cast->from) / 8, to = moert_dtype_bits(cast->to) / 8;
    moert_mapping maps;
    const unsigned char *source;
    unsigned char *target;
    MOERT_TRY(MOERT_MAP(&maps, {cast->source, &source}, {cast->target, &target}));
    for (size_t i = 0; i < cast->n; i++) {
        const float x = moert_dtype_decode(cast->from, load_code(source + i * from, from));
        store_code(target + i * to, to, moert_dtype_encode(cast->to, x));
    }
    return moert_unmap_all(&maps, MOERT_OK);
}

/* ---- tiles of scales ---- */

/* The operation on host memory. */
typedef struct tiling {
    const moert_scale_tiles *op;
    uint32_t whole[1]; /* the value of `ends` if op has no groups: one group of all rows */
    const uint32_t *ends;
    unsigned char *linear, *swizzled;
} tiling;

/* The byte of scale (r, c) in a matrix with `scales` scales in a row. */
static size_t swizzled_at(size_t r, size_t c, size_t scales) {
    return (r / 128 * moert_ceil_div(scales, 4) + c / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 +
           c % 4;
}

/* Copies lines [start, end) to the tiles (`forward`) or back. These lines belong to a matrix of
 * `lines` lines, whose first tile begins at byte `base`. */
static void move_group(const tiling *t, size_t start, size_t end, size_t lines, size_t base,
                       bool forward) {
    const moert_scale_tiles *op = t->op;
    const size_t scales = op->transposed ? lines : op->width, own = end - start;
    const size_t high = op->transposed ? op->width : own, wide = op->transposed ? own : op->width;
    for (size_t r = 0; forward && r < high; r += MOERT_TILE_ROWS)
        for (size_t c = 0; c < wide; c += MOERT_TILE_SCALES)
            memset(t->swizzled + base + swizzled_at(r, c, scales), 0, MOERT_TILE_BYTES);
    for (size_t line = start; line < end; line++)
        for (size_t column = 0; column < op->width; column++) {
            const size_t r = op->transposed ? column : line - start;
            const size_t c = op->transposed ? line - start : column;
            const size_t at = base + swizzled_at(r, c, scales);
            unsigned char *scale = &t->linear[line * op->width + column];
            if (forward)
                t->swizzled[at] = *scale;
            else
                *scale = t->swizzled[at];
        }
}

static moert_status move_scales(const moert_scale_tiles *op, bool forward) {
    const size_t unit = moert_tile_lines(op->transposed);
    tiling t = {.op = op, .whole = {(uint32_t)op->groups.rows}};
    moert_mapping maps;
    MOERT_TRY(MOERT_MAP(&maps, {op->groups.ends, &t.ends}, {op->linear, &t.linear},
                        {op->swizzled, &t.swizzled}));
    if (t.ends == NULL)
        t.ends = t.whole;
    const moert_status status = moert_check_ends(&op->groups, t.ends);
    size_t start = 0, base = 0, tiles = 0;
    for (size_t g = op->whole ? op->groups.count - 1 : 0;
         status == MOERT_OK && g < op->groups.count; start = t.ends[g++]) {
        const size_t lines = op->whole ? op->groups.rows : t.ends[g] - start;
        tiles += moert_ceil_div(lines, unit);
        if (tiles > op->tiles)
            break;
        move_group(&t, start, t.ends[g], lines, base, forward);
        base += moert_swizzled_bytes(NULL, 1, lines, op->width, op->transposed);
    }
    return moert_unmap_all(&maps, status);
}

moert_status moert_reference_swizzle(const moert_scale_tiles *op) {
    return move_scales(op, true);
}

moert_status moert_reference_unswizzle(const moert_scale_tiles *op) {
    return move_scales(op, false);
}

/* ---- around quantized operands ---- */

moert_status moert_reference_block_ends(const moert_block_ends *op) {
    moert_mapping maps;
    uint32_t *ends, *to;
    MOERT_TRY(MOERT_MAP(&maps, {op->groups.ends, &ends}, {op->to, &to}));
    const moert_status status = moert_check_ends(&op->groups, ends);
    for (size_t g = 0; status == MOERT_OK && g < op->groups.count; g++)
        to[g] = (uint32_t)moert_min(moert_row_blocks(ends, g + 1, op->block), op->most);
    return moert_unmap_all(&maps, status);
}

moert_status moert_reference_fold_globals(const moert_global_scales *op) {
    moert_mapping maps;
    float *alpha, *first, *second, *to;
    MOERT_TRY(MOERT_MAP(&maps, {op->alpha, &alpha}, {op->first, &first}, {op->second, &second},
                        {op->to, &to}));
    for (size_t g = 0; g < op->groups; g++) {
        const float a = first != NULL ? first[op->first_by_groups ? g : 0] : 1.0f;
        const float b = second != NULL ? second[op->second_by_groups ? g : 0] : 1.0f;
        to[g] = (alpha != NULL ? alpha[g] : 1.0f) * (a * b);
    }
    return moert_unmap_all(&maps, MOERT_OK);
}

moert_status moert_reference_transpose(const moert_transpose *op) {
    moert_mapping maps;
    const unsigned char *from;
    unsigned char *to;
    MOERT_TRY(MOERT_MAP(&maps, {op->from, &from}, {op->to, &to}));
    for (size_t row = 0; row < op->groups * op->rows; row++)
        for (size_t c = 0; c < op->columns; c++) {
            const size_t g = row / op->rows, r = row % op->rows;
            const size_t at = (g * op->columns + c) * op->rows + r;
            memcpy(to + at * op->element_bytes, from + (row * op->columns + c) * op->element_bytes,
                   op->element_bytes);
        }
    return moert_unmap_all(&maps, MOERT_OK);
}

/* ---- runs of gate and up ---- */

moert_status moert_reference_interleave(const moert_interleave *op) {
    moert_mapping maps;
    const unsigned char *from;
    unsigned char *to;
    MOERT_TRY(MOERT_MAP(&maps, {op->from, &from}, {op->to, &to}));
    for (size_t m = 0; m < op->rows; m++)
        for (size_t j = 0; j < 2 * op->width; j++) {
            const size_t run = j / op->granularity, half = run % 2;
            const size_t column =
                half * op->width + run / 2 * op->granularity + j % op->granularity;
            const size_t mixed = m * 2 * op->width + j, plain = m * 2 * op->width + column;
            memcpy(to + (op->inverse ? plain : mixed) * op->element_bytes,
                   from + (op->inverse ? mixed : plain) * op->element_bytes, op->element_bytes);
        }
    return moert_unmap_all(&maps, MOERT_OK);
}
