/* How the portable backend packs weights: as panels in global memory (kernels/gemm/packed.cl), for
 * CPUs in CPU form: caches take the place of the local copies that others make in every product. */
#include <stdio.h>

#include "args/gemm.h"
#include "gemm/backend.h"
#include "gemm/portable/gemm.h"

enum {
    PANELS = 8,   /* of a work-group: it reads whole pages of a line */
    MOST_READ = 3 /* after the last panel, by tiles that are wider than one */
};

/* Terms of a panel, of the dimension that is summed over. */
static size_t height_of(const moert_packed *packed) {
    const moert_packed_shape *shape = &packed->shape;
    return moert_panel_height(packed, shape->use == MOERT_PACKED_DGRAD ? shape->n : shape->k);
}

/* Tiles that take no GLU find the panels of a plain product. */
static moert_packed_for layout_of(const moert_packed *packed) {
    const moert_packed_for use = packed->shape.use;
    return use == MOERT_PACKED_GATED && !moert_gates_fit(packed->tile.width) ? MOERT_PACKED_FORWARD
                                                                             : use;
}

/* Columns of a panel, and of all panels together. */
static size_t columns_of(const moert_packed *packed) {
    return (size_t)packed->tile.width * MOERT_VECTOR;
}

static size_t width_of(const moert_packed *packed) {
    const moert_packed_shape *shape = &packed->shape;
    if (layout_of(packed) == MOERT_PACKED_GATED)
        return moert_gated_columns(shape->n / 2, packed->tile.width);
    return shape->use == MOERT_PACKED_DGRAD ? shape->k : shape->n;
}

static size_t plan(const moert_device *device, moert_packed *packed) {
    const moert_packed_shape *shape = &packed->shape;
    const moert_tuning_key key = {shape->use == MOERT_PACKED_DGRAD ? MOERT_TUNED_PACKED_DGRAD
                                                                   : MOERT_TUNED_PACKED_FORWARD,
                                  shape->type, shape->n, shape->k, 0};
    const moert_device_info *info = moert_device_describe(device);
    bool measured;
    if (!info->is_cpu || info->gpu_form || shape->groups == 0)
        return 0;
    packed->term = moert_term_of(device, shape->type);
    packed->tile = moert_with_tile(moert_tuning_find(device, &key, &measured), packed->term);
    const size_t columns = columns_of(packed);
    return (shape->groups * moert_ceil_div(width_of(packed), columns) + MOST_READ) *
           height_of(packed) * columns * sizeof(float);
}

void moert_gemm_program(const moert_device *device, moert_number type, const moert_packed *packed,
                        const moert_coded *coded, const moert_choices *tile,
                        char spec[MOERT_SPEC_BYTES]) {
    const moert_term term = packed != NULL ? packed->term : moert_term_of(device, type);
    char family[112];
    int length =
        snprintf(family, sizeof family, "%s -DBF16=%d -DDOT=%d -DLINES=%u -DWIDTH=%u -DCODED=%d",
                 packed != NULL ? "gemm/packed" : "gemm/gemm", type == MOERT_NUMBER_BF16, (int)term,
                 tile->lines, tile->width, coded != NULL);
    if (packed != NULL)
        length += snprintf(family + length, sizeof family - (size_t)length, " -DPACKED=%u",
                           packed->tile.width);
    if (term == MOERT_TERM_TILE)
        snprintf(family + length, sizeof family - (size_t)length, " -DAMX=%d",
                 moert_device_describe(device)->has_tiles);
    if (coded != NULL)
        moert_format_program(family, coded->format, spec);
    else
        snprintf(spec, MOERT_SPEC_BYTES, "%s", family);
}

static moert_status fill(const moert_packed *packed, const moert_buffer *weight,
                         const moert_coded *coded) {
    static const char *const kernels[] = {"gemm_pack_forward", "gemm_pack_dgrad",
                                          "gemm_pack_gated"};
    const moert_packed_shape *shape = &packed->shape;
    moert_device *device = moert_buffer_device(packed->panels);
    const moert_grid grid = {moert_ceil_div(width_of(packed), PANELS * columns_of(packed)),
                             shape->groups, 1};
    const moert_packed_for layout = layout_of(packed);
    const size_t n = layout == MOERT_PACKED_GATED ? shape->n / 2 : shape->n;
    char spec[MOERT_SPEC_BYTES];
    moert_gemm_program(device, shape->type, packed, coded, &packed->tile, spec);
    return MOERT_RUN(device, spec, kernels[layout], grid, MOERT_WEIGHT_ARGS(weight, coded),
                     MOERT_ARG(packed->panels),
                     MOERT_ARGS(moert_gemm_args, .n = (int)n, .width = (int)n, .k = (int)shape->k,
                                .axis = coded != NULL ? (int)coded->axis : 0,
                                .flipped = coded != NULL && coded->flipped,
                                .height = (int)height_of(packed), .panels = PANELS));
}

const moert_packing moert_portable_packing = {.plan = plan, .fill = fill, .pays_at = 2};
