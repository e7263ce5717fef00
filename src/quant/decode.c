/* Launches kernels/quant/decode_gpu.cl. */
#include "quant/decode.h"

#include <stdio.h>

#include "args/quant.h"
#include "base/memory.h"
#include "device/device.h"
#include "device/launch.h"
#include "quant/backend.h"

enum { ITEMS = MOERT_DECODE_ITEMS, UNIT = MOERT_DECODE_UNIT, SPEC_BYTES = 32 };

bool moert_decode_suits(const moert_quantize *op, bool equal_groups) {
    const moert_quantizer *how = &op->how;
    const size_t block = moert_format_block(how->format);
    if (!moert_device_describe(moert_buffer_device(op->x))->gpu_form ||
        op->x_type != MOERT_DTYPE_BF16 || how->format >= MOERT_DECODED_FORMATS ||
        op->global != NULL)
        return false;
    if (how->axis != MOERT_AXIS_COLUMN)
        return op->columns % block == 0;
    return equal_groups && !how->transposed && op->columns % UNIT == 0 &&
           op->groups.rows % (op->groups.count * block) == 0;
}

moert_status moert_decode(const moert_quantize *op) {
    const size_t rows = op->groups.rows, columns = op->columns;
    const size_t blocks = rows / moert_format_block(op->how.format), units = rows * columns / UNIT;
    moert_device *device = moert_buffer_device(op->x);
    char spec[SPEC_BYTES];
    snprintf(spec, sizeof spec, "quant/decode_gpu -DFORMAT=%d", (int)op->how.format);
    if (op->how.axis != MOERT_AXIS_COLUMN)
        return MOERT_RUN(device, spec, "decode_along",
                         ((moert_grid){moert_ceil_div(units, ITEMS * MOERT_DECODE_AHEAD), 1, 1}),
                         MOERT_ARG(op->q), MOERT_ARG(op->scale), MOERT_ARG(units),
                         MOERT_ARG(op->x));
    return MOERT_RUN(device, spec, "decode_down",
                     ((moert_grid){moert_ceil_div(columns / UNIT, ITEMS), blocks, 1}),
                     MOERT_ARG(op->q), MOERT_ARG(op->scale), MOERT_ARG((unsigned)columns),
                     MOERT_ARG(op->x));
}
