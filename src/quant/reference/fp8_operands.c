/* The quantizer of FP8 operands of the reference backend, block by block (quant/fp8_operands.h). */
#include <math.h>

#include "base/dtype.h"
#include "device/mapping.h"
#include "quant/backend.h"
#include "quant/reference/block_scale.h"

enum { BLOCK = MOERT_FP8_BLOCK, MULTIPLE = MOERT_FP8_ROW_MULTIPLE };

/* The operation on host memory. */
typedef struct job {
    const moert_fp8_operands *op;
    const uint32_t *ends;
    uint32_t *padded_ends;
    const void *x;
    unsigned char *along, *down;
    float *along_scale, *down_scale;
} job;

/* A block of rows and columns. Its element (r, c) is stored at to[r * row_step + c * column_step].
 * `padding` more rows of elements 0 follow. */
typedef struct block {
    size_t row, rows, column, columns;
    unsigned char *to;
    size_t row_step, column_step, padding;
} block;

static float x_at(const job *j, size_t row, size_t column) {
    return moert_row_value(j->x, j->op->x_type, row * j->op->x_stride + column);
}

/* Quantizes a block; returns its scale. */
static float quantize_block(const job *j, const block *b) {
    const moert_quantizer powers = MOERT_QUANTIZER_INIT;
    float amax = 0.0f;
    for (size_t i = 0; i < b->rows * b->columns; i++)
        moert_raise_amax(&amax, x_at(j, b->row + i / b->columns, b->column + i % b->columns));
    const moert_block_scale s = moert_block_scale_of(&powers, amax, NULL, 1.0f);
    for (size_t i = 0; i < (b->rows + b->padding) * b->columns; i++) {
        const size_t r = i / b->columns, c = i % b->columns;
        const float x = r < b->rows ? x_at(j, b->row + r, b->column + c) : 0.0f;
        b->to[r * b->row_step + c * b->column_step] =
            (unsigned char)moert_dtype_encode(MOERT_DTYPE_E4M3, x * s.factor);
    }
    return moert_e8m0_decode((uint8_t)s.code);
}

static void quantize_row(const job *j, size_t row) {
    const size_t n = j->op->columns;
    for (size_t c = 0; c < n; c += BLOCK)
        j->along_scale[row * (n / BLOCK) + c / BLOCK] =
            quantize_block(j, &(block){row, 1, c, BLOCK, j->along + row * n + c, n, 1, 0});
}

/* Quantizes block number `slot` of rows of a group, whose column of `down` is `at`. */
static void quantize_down(const job *j, size_t row, size_t rows, size_t at, size_t slot) {
    const moert_groups *g = &j->op->groups;
    const size_t padded = moert_fp8_padded_rows(g->rows, g->count), n = j->op->columns;
    for (size_t c = 0; c < n; c++)
        j->down_scale[slot * n + c] =
            quantize_block(j, &(block){row, rows, c, 1, j->down + c * padded + at, 1, padded,
                                       moert_ceil_div(rows, MULTIPLE) * MULTIPLE - rows});
}

static void quantize_groups(const job *j) {
    const moert_groups *groups = &j->op->groups;
    size_t slot = 0, at = 0, start = 0;
    for (size_t g = 0; g < groups->count; g++) {
        const size_t end = j->ends != NULL ? j->ends[g] : groups->rows;
        for (size_t row = start; j->along != NULL && row < end; row++)
            quantize_row(j, row);
        for (size_t row = start; j->down != NULL && row < end; row += BLOCK)
            quantize_down(j, row, moert_min(BLOCK, end - row), at + row - start, slot++);
        at += moert_ceil_div(end - start, MULTIPLE) * MULTIPLE;
        if (j->down != NULL)
            j->padded_ends[g] = (uint32_t)at;
        start = end;
    }
}

/* Quantizes the tile at a row and a column both ways. */
static void quantize_tile(const job *j, size_t row, size_t column) {
    const moert_groups *groups = &j->op->groups;
    const size_t n = j->op->columns, height = groups->rows / groups->count, down = row % height,
                 across = n / BLOCK, g = row / height;
    unsigned char *turned = j->down + (g * n + column) * height + down;
    const float scale = quantize_block(
        j, &(block){row, BLOCK, column, BLOCK, j->along + row * n + column, n, 1, 0});
    quantize_block(j, &(block){row, BLOCK, column, BLOCK, turned, 1, height, 0});
    j->along_scale[row / BLOCK * across + column / BLOCK] = scale;
    j->down_scale[(g * across + column / BLOCK) * (height / BLOCK) + down / BLOCK] = scale;
}

moert_status moert_reference_fp8_operands(const moert_fp8_operands *op) {
    job j = {.op = op};
    moert_mapping maps;
    MOERT_TRY(MOERT_MAP(&maps, {op->groups.ends, &j.ends}, {op->padded_ends, &j.padded_ends},
                        {op->x, &j.x}, {op->along.q, &j.along}, {op->along.scale, &j.along_scale},
                        {op->down.q, &j.down}, {op->down.scale, &j.down_scale}));
    const moert_status status = j.ends != NULL ? moert_check_ends(&op->groups, j.ends) : MOERT_OK;
    if (status == MOERT_OK && !op->tiles)
        quantize_groups(&j);
    for (size_t row = 0; status == MOERT_OK && op->tiles && row < op->groups.rows; row += BLOCK)
        for (size_t column = 0; column < op->columns; column += BLOCK)
            quantize_tile(&j, row, column);
    return moert_unmap_all(&maps, status);
}
