/* Copies and sums of column blocks: launches kernels/nn/columns.cl. */
#include <stdio.h>

#include "args/nn.h"
#include "base/dtype.h"
#include "base/memory.h"
#include "device/device.h"
#include "device/launch.h"
#include "device/profile/profile.h"
#include "nn/nn.h"

enum { BLOCK_ROWS = 32, GPU_BLOCK_ROWS = 4, SPEC_BYTES = 48 };

static moert_status check(const moert_columns *c) {
    int narrow;
    if (c->from_column + c->columns > c->from_stride || c->to_column + c->columns > c->to_stride)
        return MOERT_FAIL(ERROR_USAGE,
                          "columns [%zu, +%zu) must lie within source rows of %zu columns, and "
                          "columns [%zu, +%zu) within target rows of %zu columns",
                          c->from_column, c->columns, c->from_stride, c->to_column, c->columns,
                          c->to_stride);
    if (c->type != MOERT_DTYPE_F32 && c->type != MOERT_DTYPE_BF16)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "columns are copied to f32 or bf16, not to %s",
                          moert_dtype_name(c->type));
    return moert_to_int(c->columns, "number of columns", &narrow);
}

static moert_status run(const moert_columns *c, const char *kernel, size_t rows_read) {
    moert_device *device = moert_buffer_device(c->to);
    const size_t block = moert_by_form(device, BLOCK_ROWS, GPU_BLOCK_ROWS);
    const size_t sizes = c->columns | c->from_stride | c->from_column | c->to_stride | c->to_column;
    char spec[SPEC_BYTES];
    MOERT_TRY(check(c));
    snprintf(spec, sizeof spec, "%s -DROUNDED=%d", MOERT_PROGRAM(device, "nn/columns", sizes),
             c->type == MOERT_DTYPE_BF16);
    const size_t bytes = sizeof(float) * rows_read + moert_dtype_bits(c->type) / 8 * c->rows;
    moert_profile_work(device, "nn/columns", 0.0, (double)c->columns * (double)bytes);
    return MOERT_RUN(device, spec, kernel, ((moert_grid){moert_ceil_div(c->rows, block), 1, 1}),
                     MOERT_ARG(c->from), MOERT_ARG(c->to),
                     MOERT_ARGS(moert_columns_args, .rows = c->rows, .block = block,
                                .repeat = moert_max(c->repeat, 1), .from_stride = c->from_stride,
                                .from_column = c->from_column, .to_stride = c->to_stride,
                                .to_column = c->to_column, .columns = (int)c->columns));
}

moert_status moert_columns_copy(const moert_columns *columns) {
    return run(columns, "columns_copy", columns->rows / moert_max(columns->repeat, 1));
}

moert_status moert_columns_sum(const moert_columns *columns) {
    return run(columns, "columns_sum", columns->rows * moert_max(columns->repeat, 1));
}
