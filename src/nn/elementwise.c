/* Elementwise operations: launches kernels/nn/elementwise.cl. */
#include "args/nn.h"
#include "base/memory.h"
#include "device/device.h"
#include "device/launch.h"
#include "device/profile/profile.h"
#include "nn/nn.h"

/* Returns the grid for n floats. Reports `passes` reads or writes of n floats to the profile. */
static moert_grid grid_of(moert_device *device, size_t n, size_t passes) {
    moert_profile_work(device, "nn/elementwise", 0.0, (double)(passes * sizeof(float)) * (double)n);
    return (moert_grid){moert_ceil_div(n, moert_by_form(device, MOERT_ELEMENTWISE_BLOCK,
                                                        MOERT_ELEMENTWISE_GPU_BLOCK)),
                        1, 1};
}

moert_status moert_add(size_t n, const moert_buffer *x, moert_buffer *y) {
    moert_device *device = moert_buffer_device(y);
    return MOERT_RUN(device, MOERT_PROGRAM(device, "nn/elementwise", n), "add",
                     grid_of(device, n, 3), MOERT_ARG(x), MOERT_ARG(y), MOERT_ARG(n));
}

moert_status moert_add_scaled(size_t n, float scale, const moert_buffer *x, moert_buffer *y) {
    moert_device *device = moert_buffer_device(y);
    return MOERT_RUN(device, MOERT_PROGRAM(device, "nn/elementwise", n), "add_scaled",
                     grid_of(device, n, 3), MOERT_ARG(x), MOERT_ARG(y),
                     MOERT_ARGS(moert_scale_args, .n = n, .scale = scale));
}

moert_status moert_scale(size_t n, float scale, moert_buffer *y) {
    moert_device *device = moert_buffer_device(y);
    return MOERT_RUN(device, MOERT_PROGRAM(device, "nn/elementwise", n), "scale",
                     grid_of(device, n, 2), MOERT_ARG(y),
                     MOERT_ARGS(moert_scale_args, .n = n, .scale = scale));
}

static moert_status run_clip(const char *kernel, size_t passes, size_t n, float limit,
                             const moert_buffer *x, moert_buffer *y) {
    moert_device *device = moert_buffer_device(y);
    if (!(limit > 0.0f))
        return MOERT_FAIL(ERROR_USAGE, "values are clipped to a positive limit, not %g",
                          (double)limit);
    return MOERT_RUN(device, MOERT_PROGRAM(device, "nn/elementwise", n), kernel,
                     grid_of(device, n, passes), MOERT_ARG(x), MOERT_ARG(y),
                     MOERT_ARGS(moert_clip_args, .n = n, .limit = limit));
}

moert_status moert_clip(size_t n, float limit, const moert_buffer *x, moert_buffer *y) {
    return run_clip("clip", 2, n, limit, x, y);
}

moert_status moert_clip_backward(size_t n, float limit, const moert_buffer *x, moert_buffer *dy) {
    return run_clip("clip_backward", 3, n, limit, x, dy);
}
