/* How the portable backend packs weights: as panels in global memory (kernels/gemm_packed.cl), for
 * CPUs, whose caches take the place of the local copies that other devices make in every product.
 */
#include "ops/backend.h"
#include "ops/portable.h"

enum { PANELS = 8 }; /* of a work-group: it reads whole pages of a line */

/* The panels' columns and the dimension that is summed over. */
static size_t width_of(const moert_packed_shape *shape) {
    return shape->use == MOERT_PACKED_FORWARD ? shape->n : shape->k;
}

static size_t height_of(const moert_packed_shape *shape) {
    return moert_panel_height(shape->type,
                              shape->use == MOERT_PACKED_FORWARD ? shape->k : shape->n);
}

static size_t packed_bytes(const moert_device *device, const moert_packed_shape *shape) {
    if (!moert_device_describe(device)->is_cpu)
        return 0;
    return shape->groups * moert_ceil_div(width_of(shape), MOERT_PANEL_COLUMNS) * height_of(shape) *
           MOERT_PANEL_COLUMNS * sizeof(float);
}

static moert_status packed_fill(const moert_packed_shape *shape, const moert_buffer *weight,
                                const moert_coded *coded, moert_buffer *panels) {
    moert_device *device = moert_buffer_device(panels);
    const moert_grid grid = {moert_ceil_div(width_of(shape), PANELS * (size_t)MOERT_PANEL_COLUMNS),
                             shape->groups, 1};
    const moert_weight_source w = moert_weight_source_of(weight, coded);
    char spec[MOERT_SPEC_BYTES];
    moert_gemm_program(device, shape->type, true, coded, spec);
    return MOERT_RUN(
        device, spec, shape->use == MOERT_PACKED_FORWARD ? "gemm_pack_forward" : "gemm_pack_dgrad",
        grid, MOERT_WEIGHT_ARGS(w), MOERT_ARG(panels), MOERT_ARG((int)shape->n),
        MOERT_ARG((int)shape->k), MOERT_ARG((int)height_of(shape)), MOERT_ARG((int)PANELS));
}

const moert_packing moert_portable_packing = {packed_bytes, packed_fill};
