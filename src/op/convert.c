/* Between quantised operands of ops and plain ones. */
#include "op/converted.h"
#include "quant/decode.h"

static moert_groups groups_of(const moert_op_buffers *b, const moert_conversion *c) {
    return (moert_groups){c->as->by_ends ? b->ends : c->ends, c->as->groups, c->as->rows};
}

moert_status moert_conversion_move_scales(const moert_quant_backend *by, const moert_op_buffers *b,
                                          const moert_conversion *c, moert_buffer *linear,
                                          moert_buffer *tiled, bool to_tiles) {
    const moert_op_quantized *q = c->as;
    const bool column = q->how.axis == MOERT_AXIS_COLUMN;
    moert_scale_tiles tiles = {.groups = groups_of(b, c),
                               .width = q->width,
                               .transposed = column,
                               .whole = q->scales == MOERT_SCALES_TILED_WHOLE,
                               .linear = linear,
                               .swizzled = tiled,
                               .tiles = q->tiles};
    if (column) {
        MOERT_TRY(by->block_ends(&(moert_block_ends){
            tiles.groups, moert_format_block(q->how.format), q->blocks, c->block_ends}));
        tiles.groups = (moert_groups){c->block_ends, q->groups, q->blocks};
    }
    MOERT_TRY(to_tiles ? by->swizzle(&tiles) : by->unswizzle(&tiles));
    return MOERT_OK;
}

/* What the quantisers take and give. */
static moert_quantize describe(const moert_op_buffers *b, const moert_conversion *c,
                               moert_buffer *values, moert_buffer *payload, moert_buffer *scale) {
    return (moert_quantize){.how = c->as->how,
                            .groups = groups_of(b, c),
                            .columns = c->as->columns,
                            .x = c->stored != NULL ? c->stored : values,
                            .x_type = c->type,
                            .q = payload,
                            .scale = c->turned != NULL  ? c->turned
                                     : c->scale != NULL ? c->scale
                                                        : scale,
                            .blocks = c->as->blocks};
}

moert_status moert_conversion_load(const moert_quant_backend *by, const moert_op_buffers *b,
                                   const moert_conversion *c, moert_buffer *payload,
                                   moert_buffer *scale, moert_buffer *values) {
    const moert_op_quantized *q = c->as;
    moert_quantize job = describe(b, c, values, payload, scale);
    job.how.group_scales = false;
    if (c->scale != NULL)
        MOERT_TRY(moert_conversion_move_scales(by, b, c, c->scale, scale, false));
    if (c->turned != NULL)
        MOERT_TRY(
            by->transpose(&(moert_transpose){1, q->blocks, q->width, 1, c->scale, c->turned}));
    MOERT_TRY(moert_decode_suits(&job, !q->by_ends) ? moert_decode(&job) : by->dequantize(&job));
    if (q->flipped)
        MOERT_TRY(
            by->transpose(&(moert_transpose){q->groups, q->rows / q->groups, q->columns,
                                             moert_number_bits(c->type) / 8, c->stored, values}));
    return MOERT_OK;
}

moert_status moert_conversion_store(const moert_quant_backend *by, const moert_op_buffers *b,
                                    const moert_conversion *c, moert_buffer *payload,
                                    moert_buffer *scale, moert_buffer *values) {
    const moert_op_quantized *q = c->as;
    moert_quantize job = describe(b, c, values, payload, scale);
    job.norm = b->norm;
    MOERT_TRY(by->quantize(&job));
    if (c->turned != NULL)
        MOERT_TRY(
            by->transpose(&(moert_transpose){1, q->width, q->blocks, 1, c->turned, c->scale}));
    return c->scale != NULL ? moert_conversion_move_scales(by, b, c, c->scale, scale, true)
                            : MOERT_OK;
}
