/* The addresses of elements and scales (place.h). */
#include "tests/support/op/place.h"

#include "moert/quantize.h"

/* ---- operands ---- */

ops_operand ops_find(const moert_op *op, const uint32_t *ends, moert_op_buffer payload) {
    const moert_op_options *p = &op->options;
    const moert_op_rows plain = {.divisor = 1};
    const moert_op_matrix *m = moert_op_matrix_of(payload);
    const moert_op_rows *rows = payload == MOERT_OP_BUFFER_weight ? NULL
                                : payload == MOERT_OP_BUFFER_x    ? &op->x
                                : payload == MOERT_OP_BUFFER_y    ? &op->y
                                                                  : &plain;
    ops_operand o = {.as = *moert_op_operand(p, payload),
                     .payload = payload,
                     .scale = m->scale,
                     .global = m->global,
                     .weight = rows == NULL,
                     .result = payload == MOERT_OP_BUFFER_column ||
                               payload == moert_op_roles_of(p->kind).result,
                     .groups = rows != NULL && rows->gathered ? 1 : p->groups,
                     .columns = moert_op_columns(p, payload)};
    if (rows == NULL)
        o.each = p->n;
    else if (rows->gathered)
        o.each = moert_ceil_div(p->rows, rows->divisor);
    else
        o.ends = ends;
    if (rows != NULL && o.as.how.size != 0) {
        const size_t block = moert_format_block(o.as.how.format);
        const bool promised = p->row_multiple > 0 && p->row_multiple % block == 0;
        o.lines = p->rows;
        o.room = promised ? moert_ceil_div(p->rows, block)
                          : moert_row_blocks_most(p->rows, o.groups, block);
    }
    return o;
}

/* ---- addresses ---- */

static size_t tile_at(size_t r, size_t c, size_t scales) {
    return (r / 128 * moert_ceil_div(scales, 4) + c / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 +
           c % 4;
}

/* The address of a tiled scale of group g: of block c in line r. */
static size_t tiled_at(const ops_operand *o, size_t g, size_t r, size_t c) {
    const bool column = o->as.how.axis == MOERT_AXIS_COLUMN;
    const size_t block = moert_format_block(o->as.how.format);
    size_t base = 0, scales = 0, before = 0;
    for (size_t i = 0; i <= g; i++) {
        const size_t lines = ops_lines(o, i);
        scales = moert_ceil_div(column ? lines : o->columns, block);
        if (i == g)
            break;
        before += column ? scales : lines;
        base += moert_ceil_div(column ? o->columns : lines, 128) * moert_ceil_div(scales, 4) * 512;
    }
    /* each group has its own matrix of tiles */
    if (o->as.scales == MOERT_SCALES_TILED || o->as.discrete)
        return base + tile_at(r, c, scales);
    if (!column)
        return tile_at(before + r, c, scales);
    return tile_at(r, before + c, o->weight ? o->groups * scales : o->room);
}

ops_place ops_locate(const ops_operand *o, size_t g, size_t line, size_t j) {
    const moert_quantizer *how = &o->as.how;
    const size_t block = moert_format_block(how->format), row = ops_first(o, g) + line;
    const size_t across = moert_ceil_div(o->columns, block), w = o->columns;
    const bool halves = moert_format_element_bits(how->format) == 4;
    const bool column = how->axis == MOERT_AXIS_COLUMN, transposed = o->weight && how->transposed;
    const size_t n = ops_lines(o, g), pair = block / 2;
    size_t slot = line / block; /* the block's index among the row blocks of all groups */
    for (size_t i = 0; i < g && how->axis != MOERT_AXIS_ROW; i++)
        slot += moert_ceil_div(ops_lines(o, i), block);
    const size_t bytes_across = halves ? moert_ceil_div(w, 2) : w;
    ops_place p = {halves ? row * bytes_across + j / 2 : row * w + j, row * across + j / block,
                   halves ? 4 * (j % 2) : 0};
    if (transposed && how->axis == MOERT_AXIS_TILE) { /* [K,N] in tiles of FP8_BLOCK */
        p.byte = (g * w + j) * n + line;
        p.scale = (g * across + j / block) * moert_ceil_div(n, block) + line / block;
    } else if (transposed && column) { /* [K,N], blocks along N */
        p.byte = halves ? (g * w + j) * moert_ceil_div(n, 2) + line / 2 : (g * w + j) * n + line;
        p.scale = (g * w + j) * moert_ceil_div(n, block) + line / block;
        p.shift = halves ? 4 * (line % 2) : 0;
    } else if (transposed) { /* [K,N], blocks along K */
        const size_t at = (g * across + j / block) * pair + j % block / 2;
        p.byte = halves ? at * n + line : (g * w + j) * n + line;
        p.scale = (g * across + j / block) * n + line;
    } else if (column) {
        const size_t at = halves ? slot * pair + line % block / 2 : row;
        const size_t all = halves ? o->room * pair : o->lines;
        p.byte = how->transposed ? j * all + at : at * w + j;
        p.scale = how->transposed ? j * o->room + slot : slot * w + j;
        p.shift = halves ? 4 * (line % block % 2) : 0;
    } else if (how->axis == MOERT_AXIS_TILE && how->format == MOERT_FORMAT_FP8_BLOCK) {
        p.scale = slot * across + j / block;
    }
    if (o->as.scales != MOERT_SCALES_LINEAR)
        p.scale = column ? tiled_at(o, g, j, line / block) : tiled_at(o, g, line, j / block);
    return p;
}
