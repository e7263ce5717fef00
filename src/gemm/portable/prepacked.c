/* Prepacks weights for the portable backend as panels in global memory (kernels/gemm/prepacked.cl).
 * Only the CPU form prepacks: CPU caches replace the local copies that GEMMs make without
 * prepacking. */
#include <stdio.h>
#include <string.h>

#include "args/gemm.h"
#include "device/device.h"
#include "gemm/backend.h"
#include "gemm/portable/gemm.h"

/* number of panels that a work-group fills, enough to read whole pages of a row */
enum { PANELS = 8 };

/* The number of rows of a panel: one for each dot of the reduction, with padding. */
static size_t height_of(const moert_panels *panels) {
    const moert_panels_shape *shape = &panels->shape;
    return moert_panel_height(panels, shape->use == MOERT_PANELS_DGRAD ? shape->n : shape->k);
}

/* Gated panels need an even tile width; otherwise the layout is that of a forward without a GLU. */
static moert_panels_use layout_of(const moert_panels *panels) {
    const moert_panels_use use = panels->shape.use;
    return use == MOERT_PANELS_GATED && !moert_gates_fit(panels->tile.width) ? MOERT_PANELS_FORWARD
                                                                             : use;
}

/* Columns of a panel. */
static size_t columns_of(const moert_panels *panels) {
    return (size_t)panels->tile.width * MOERT_VECTOR;
}

/* Columns of all panels of a group. */
static size_t width_of(const moert_panels *panels) {
    const moert_panels_shape *shape = &panels->shape;
    if (layout_of(panels) == MOERT_PANELS_GATED)
        return moert_gated_columns(shape->n / 2, panels->tile.width);
    return shape->use == MOERT_PANELS_DGRAD ? shape->k : shape->n;
}

static size_t plan(const moert_device *device, const moert_choices *choices, moert_panels *panels) {
    const moert_panels_shape *shape = &panels->shape;
    const moert_tuning_key key = {shape->use == MOERT_PANELS_DGRAD ? MOERT_TUNED_PREPACKED_DGRAD
                                                                   : MOERT_TUNED_PREPACKED_FORWARD,
                                  shape->type, shape->n, shape->k, 0};
    const moert_device_info *info = moert_device_describe(device);
    if (!info->is_cpu || info->gpu_form || shape->groups == 0)
        return 0;
    panels->dot = panels->few_rows ? moert_dot_of_few_rows(device, shape->type)
                                   : moert_dot_of(device, shape->type);
    panels->tile =
        moert_with_tile(choices != NULL ? *choices : moert_tuning_find(device, &key), panels->dot);
    const size_t columns = columns_of(panels);
    return (shape->groups * moert_ceil_div(width_of(panels), columns) + MOERT_GEMM_PANELS_PAST) *
           height_of(panels) * columns * sizeof(float);
}

void moert_gemm_program(const moert_device *device, moert_dtype type, const moert_panels *panels,
                        const moert_quantized *quantized, const moert_choices *tile,
                        char spec[MOERT_SPEC_BYTES]) {
    const moert_dot dot = panels != NULL ? panels->dot : moert_dot_of(device, type);
    char family[112];
    int length = snprintf(family, sizeof family,
                          "%s -DBF16=%d -DDOT=%d -DLINES=%u -DWIDTH=%u -DQUANTIZED=%d",
                          panels != NULL ? "gemm/prepacked" : "gemm/gemm", type == MOERT_DTYPE_BF16,
                          (int)dot, tile->lines, tile->width, quantized != NULL);
    if (panels != NULL)
        length += snprintf(family + length, sizeof family - (size_t)length, " -DPANEL_WIDTH=%u",
                           panels->tile.width);
    if (dot == MOERT_DOT_TILE)
        snprintf(family + length, sizeof family - (size_t)length, " -DAMX=%d",
                 moert_device_describe(device)->has_tiles);
    if (quantized != NULL)
        moert_format_program(family, quantized->format, spec);
    else
        snprintf(spec, MOERT_SPEC_BYTES, "%s", family);
}

static moert_status fill(moert_panels *panels, const moert_buffer *weight, moert_dtype type) {
    static const char *const kernels[] = {"gemm_prepack_forward", "gemm_prepack_dgrad",
                                          "gemm_prepack_gated"};
    const moert_panels_shape *shape = &panels->shape;
    moert_device *device = moert_buffer_device(panels->buffer);
    const moert_grid grid = {moert_ceil_div(width_of(panels), PANELS * columns_of(panels)),
                             shape->groups, 1};
    const moert_panels_use layout = layout_of(panels);
    const moert_buffer *const none = NULL; /* scales */
    const size_t n = layout == MOERT_PANELS_GATED ? shape->n / 2 : shape->n;
    char spec[MOERT_SPEC_BYTES];
    moert_gemm_program(device, shape->type, panels, NULL, &panels->tile, spec);
    if (type == MOERT_DTYPE_BF16)
        strcat(spec, " -DWEIGHT_BF16");
    return MOERT_RUN(device, spec, kernels[layout], grid, MOERT_ARG(weight), MOERT_ARG(none),
                     MOERT_ARG(none), MOERT_ARG(panels->buffer),
                     MOERT_ARGS(moert_gemm_args, .n = (int)n, .width = (int)n, .k = (int)shape->k,
                                .height = (int)height_of(panels), .panels = PANELS));
}

const moert_prepacker moert_portable_prepacker = {.plan = plan, .fill = fill, .pays_at = 2};
