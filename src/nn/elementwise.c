/* Adds a buffer to another. */
#include "base/memory.h"
#include "device/profile/profile.h"
#include "nn/nn.h"

/* Floats of a row group, as in kernels/nn/elementwise.cl. */
enum { BLOCK = 4096, GPU_BLOCK = 1024 };

moert_status moert_add(size_t n, const moert_buffer *x, moert_buffer *y) {
    moert_device *device = moert_buffer_device(y);
    const size_t block = moert_by_form(device, BLOCK, GPU_BLOCK);
    moert_profile_work(device, "nn/elementwise", 0.0, 3 * sizeof(float) * (double)n);
    return MOERT_RUN(device, MOERT_PROGRAM(device, "nn/elementwise", n), "add",
                     ((moert_grid){moert_ceil_div(n, block), 1, 1}), MOERT_ARG(x), MOERT_ARG(y),
                     MOERT_ARG(n));
}
