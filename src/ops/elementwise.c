/* Adds whole buffers. */
#include "base/memory.h"
#include "device/profile.h"
#include "ops/dense.h"

enum { BLOCK = 4096 }; /* floats of a work-item, as in kernels/elementwise.cl */

moert_status moert_add(size_t n, const moert_buffer *x, moert_buffer *y) {
    moert_grid grid = {moert_ceil_div(n, BLOCK), 1, 1};
    moert_profile_work(moert_buffer_device(y), "elementwise", 0.0, 3 * sizeof(float) * (double)n);
    MOERT_TRY(MOERT_RUN(moert_buffer_device(y), "elementwise", "add", grid, MOERT_ARG(x),
                        MOERT_ARG(y), MOERT_ARG(n)));
    return MOERT_OK;
}
