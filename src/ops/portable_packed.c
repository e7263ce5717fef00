/* How the portable backend packs weights: as panels in global memory (kernels/gemm_packed.cl), for
 * CPUs, whose caches take the place of the local copies that other devices make in every product.
 */
#include "ops/backend.h"
#include "ops/portable.h"

enum { PANELS = 8 }; /* of a work-group: it reads whole pages of a line */

/* The panels' columns, and the dimension that is summed over. */
static size_t width_of(const moert_packed_shape *shape) {
    switch (shape->use) {
    case MOERT_PACKED_DGRAD:
        return shape->k;
    case MOERT_PACKED_GATED:
        return moert_gated_columns(shape->n / 2);
    default:
        return shape->n;
    }
}

static size_t height_of(const moert_packed_shape *shape) {
    return moert_panel_height(shape->type, shape->use == MOERT_PACKED_DGRAD ? shape->n : shape->k);
}

static size_t packed_bytes(const moert_device *device, const moert_packed_shape *shape) {
    if (!moert_device_describe(device)->is_cpu)
        return 0;
    return shape->groups * moert_ceil_div(width_of(shape), MOERT_PANEL_COLUMNS) * height_of(shape) *
           MOERT_PANEL_COLUMNS * sizeof(float);
}

static moert_status packed_fill(const moert_packed_shape *shape, const moert_buffer *weight,
                                moert_buffer *panels) {
    moert_device *device = moert_buffer_device(panels);
    static const char *const kernels[] = {"gemm_pack_forward", "gemm_pack_dgrad",
                                          "gemm_pack_gated"};
    const moert_grid grid = {moert_ceil_div(width_of(shape), PANELS * (size_t)MOERT_PANEL_COLUMNS),
                             shape->groups, 1};
    const size_t n = shape->use == MOERT_PACKED_GATED ? shape->n / 2 : shape->n;
    return MOERT_RUN(device, moert_gemm_program(device, shape->type, true), kernels[shape->use],
                     grid, MOERT_ARG(weight), MOERT_ARG(panels), MOERT_ARG((int)n),
                     MOERT_ARG((int)shape->k), MOERT_ARG((int)height_of(shape)),
                     MOERT_ARG((int)PANELS));
}

const moert_packing moert_portable_packing = {packed_bytes, packed_fill};
