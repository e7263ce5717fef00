/* RMSNorm and its gradients: argument checks and launches of kernels/norm.cl. */
#include "base/memory.h"
#include "device/profile.h"
#include "ops/dense.h"

#define COLUMNS          64 /* of a work-group of norm_partial */
#define TEXT(number)     #number
#define PROGRAM(columns) "norm -DCOLUMNS=" TEXT(columns)

enum { BLOCK_ROWS = 32 }; /* of the other work-groups: enough work to hide their start */

static moert_status check_width(size_t width, int *checked) {
    if (width == 0)
        return MOERT_FAIL(ERROR_USAGE, "RMSNorm over rows of width 0");
    return moert_to_int(width, "width of RMSNorm", checked);
}

/* For a profile: rows of so many floats and their rstd. */
static void tell_work(moert_device *device, size_t rows, size_t floats) {
    moert_profile_work(device, "norm", 0.0, sizeof(float) * (double)(rows * (floats + 1)));
}

moert_status moert_norm_forward(size_t rows, size_t width, float epsilon, const moert_buffer *x,
                                const moert_buffer *weight, moert_buffer *y, moert_buffer *rstd) {
    int columns;
    const size_t block = BLOCK_ROWS;
    MOERT_TRY(check_width(width, &columns));
    tell_work(moert_buffer_device(x), rows, 2 * width);
    return MOERT_RUN(moert_buffer_device(x), PROGRAM(COLUMNS), "norm_forward",
                     ((moert_grid){moert_ceil_div(rows, block), 1, 1}), MOERT_ARG(rows),
                     MOERT_ARG(block), MOERT_ARG(columns), MOERT_ARG(epsilon), MOERT_ARG(x),
                     MOERT_ARG(weight), MOERT_ARG(y), MOERT_ARG(rstd));
}

moert_status moert_norm_backward(const moert_norm_gradient *norm) {
    int columns;
    const size_t block = BLOCK_ROWS, rows = norm->rows, sequences = norm->sequences;
    MOERT_TRY(check_width(norm->width, &columns));
    if (sequences == 0 ? rows != 0 : rows % sequences != 0)
        return MOERT_FAIL(ERROR_USAGE, "%zu rows do not divide into %zu sequences", rows,
                          sequences);
    moert_device *device = moert_buffer_device(norm->x);
    const size_t sequence_rows = sequences > 0 ? rows / sequences : 0;
    tell_work(device, rows, 3 * norm->width);
    /* first, since it reads dy, which may be dx */
    MOERT_TRY(MOERT_RUN(device, PROGRAM(COLUMNS), "norm_partial",
                        ((moert_grid){moert_ceil_div(norm->width, COLUMNS), sequences, 1}),
                        MOERT_ARG(sequence_rows), MOERT_ARG(columns), MOERT_ARG(norm->x),
                        MOERT_ARG(norm->rstd), MOERT_ARG(norm->dy), MOERT_ARG(norm->partial)));
    return MOERT_RUN(device, PROGRAM(COLUMNS), "norm_backward",
                     ((moert_grid){moert_ceil_div(rows, block), 1, 1}), MOERT_ARG(rows),
                     MOERT_ARG(block), MOERT_ARG(columns), MOERT_ARG((int)norm->accumulate),
                     MOERT_ARG(norm->x), MOERT_ARG(norm->weight), MOERT_ARG(norm->rstd),
                     MOERT_ARG(norm->dy), MOERT_ARG(norm->dx));
}
