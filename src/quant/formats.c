/* Facts about the block-scaled formats, and the shapes of quantized matrices. */
#include "base/memory.h"
#include "base/dtype.h"
#include "quant/quantize.h"
#include "quant/scales.h"

enum { SCALE_E8M0 = 1, SCALE_E4M3 = 1, SCALE_F32 = 4 }; /* bytes */

static const struct {
    const char *name;
    moert_dtype element;
    size_t block, scale_bytes;
} formats[] = {
#define FORMAT_ROW(name, text, element, block, scale)                                              \
    [MOERT_FORMAT_##name] = {text, MOERT_DTYPE_##element, block, SCALE_##scale},
    MOERT_FORMAT_TABLE(FORMAT_ROW)
#undef FORMAT_ROW
};

const char *moert_format_name(moert_format format) {
    return (size_t)format < MOERT_COUNT(formats) ? formats[format].name : NULL;
}

moert_dtype moert_format_element(moert_format format) {
    return formats[format].element;
}

size_t moert_format_block(moert_format format) {
    return formats[format].block;
}

size_t moert_format_element_bits(moert_format format) {
    return moert_dtype_bits(formats[format].element);
}

size_t moert_format_scale_bytes(moert_format format) {
    return formats[format].scale_bytes;
}

moert_quantizer moert_quantizer_settled(const moert_quantizer *how, bool norm) {
    moert_quantizer settled = *how;
    if (norm) {
        settled.scale_rounding = MOERT_SCALE_RCEIL;
        settled.nvfp4_rule = MOERT_NVFP4_TE;
        settled.group_scales = false;
    }
    if (settled.rounding == MOERT_ROUNDING_AUTO)
        settled.rounding =
            how->format == MOERT_FORMAT_NVFP4 && settled.nvfp4_rule == MOERT_NVFP4_BRIDGE
                ? MOERT_ROUNDING_BRIDGE
                : MOERT_ROUNDING_NEAREST;
    return settled;
}

size_t moert_row_blocks(const uint32_t *ends, size_t groups, size_t block) {
    size_t blocks = 0;
    for (size_t g = 0, start = 0; g < groups; start = ends[g++])
        blocks += moert_ceil_div(ends[g] - start, block);
    return blocks;
}

/* The number of blocks is largest if every group has one row more than a multiple of the block. */
size_t moert_row_blocks_most(size_t rows, size_t groups, size_t block) {
    return rows < groups ? rows : (rows - groups) / block + groups;
}

moert_quantized_shape moert_quantized_shape_of(const moert_quantizer *how, size_t rows,
                                               size_t columns, size_t blocks) {
    const size_t block = formats[how->format].block, across = moert_ceil_div(columns, block);
    const bool halves = moert_format_element_bits(how->format) == 4;
    if (how->axis == MOERT_AXIS_COLUMN) {
        const size_t lines = halves ? blocks * (block / 2) : rows;
        return how->transposed ? (moert_quantized_shape){columns, lines, columns, blocks}
                               : (moert_quantized_shape){lines, columns, blocks, columns};
    }
    const bool tiles = how->axis == MOERT_AXIS_TILE && how->format == MOERT_FORMAT_FP8_BLOCK;
    return (moert_quantized_shape){rows, halves ? moert_ceil_div(columns, 2) : columns,
                                   tiles ? blocks : rows, across};
}

moert_quantized_shape moert_quantized_layout(const moert_quantize *op) {
    moert_quantized_shape shape =
        moert_quantized_shape_of(&op->how, op->groups.rows, op->columns, op->blocks);
    if (op->row_bytes > 0)
        shape.q_bytes = shape.scales = op->row_bytes;
    return shape;
}

size_t moert_swizzled_bytes(const uint32_t *ends, size_t groups, size_t lines, size_t width,
                            bool transposed) {
    const uint32_t whole = (uint32_t)lines;
    const size_t along = moert_row_blocks(ends != NULL ? ends : &whole, ends != NULL ? groups : 1,
                                          moert_tile_lines(transposed));
    return along * moert_tiles_across_bytes(width, transposed);
}
