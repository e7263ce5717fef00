/* Rows of MXFP8 for the exchange, and back. */
#include "layer/wire.h"

#include "base/memory.h"
#include "moert/quantize.h"

size_t moert_wire_width(const moert_layer_options *options) {
    const moert_quantizer how = MOERT_QUANTIZER_INIT;
    if (options->dispatch == MOERT_DISPATCH_F32)
        return options->hidden;
    const moert_quantized_shape shape = moert_quantized_shape_of(&how, 1, options->hidden, 0);
    return moert_ceil_div(shape.q_bytes + shape.scales, sizeof(float));
}

/* Between x[rows,H] and q[rows, payload and scales], rows of `width` floats. */
static moert_quantize quantize_of(const moert_layer *layer, size_t rows, size_t width,
                                  moert_buffer *x, moert_buffer *q) {
    return (moert_quantize){.size = sizeof(moert_quantize),
                            .how = MOERT_QUANTIZER_INIT,
                            .groups = {.rows = rows},
                            .columns = layer->options.hidden,
                            .x = x,
                            .q = q,
                            .row_bytes = width * sizeof(float)};
}

moert_status moert_wire_pack(moert_layer *layer, const moert_buffer *rows,
                             const moert_buffer **packed) {
    const size_t tokens = layer->batch.tokens, width = moert_wire_width(&layer->options);
    moert_buffer *codes;
    *packed = rows;
    if (layer->options.dispatch == MOERT_DISPATCH_F32)
        return MOERT_OK;
    MOERT_TRY(moert_mesh_scratch(layer->mesh, MOERT_SCRATCH_CODES, tokens * width, &codes));
    *packed = codes;
    const moert_quantize op = quantize_of(layer, tokens, width, (moert_buffer *)rows, codes);
    return moert_quantize_run(&op);
}

moert_status moert_wire_unpack(moert_layer *layer, const moert_window *window, moert_buffer **rows,
                               size_t *stride) {
    const size_t received = layer->plan->plan->rows, hidden = layer->options.hidden;
    *rows = moert_window_rows(window);
    *stride = moert_window_stride(window);
    if (layer->options.dispatch == MOERT_DISPATCH_F32)
        return MOERT_OK;
    moert_quantize op = quantize_of(layer, received, *stride, NULL, *rows);
    MOERT_TRY(moert_mesh_scratch(layer->mesh, MOERT_SCRATCH_DENSE, received * hidden, &op.x));
    *rows = op.x;
    *stride = hidden;
    return moert_dequantize_run(&op);
}
