/* Weights packed once for many products, by the backend in use and in the order of its kernels. */
#include <stdlib.h>

#include "base/memory.h"
#include "device/profile/profile.h"
#include "gemm/backend.h"

static moert_status check_shape(const moert_packed_shape *shape) {
    int narrow;
    if (shape->n == 0 || shape->k == 0)
        return MOERT_FAIL(ERROR_USAGE, "a packed weight needs columns; n = %zu, k = %zu", shape->n,
                          shape->k);
    if (shape->use == MOERT_PACKED_GATED && shape->n % 2 != 0)
        return MOERT_FAIL(ERROR_USAGE, "gates and their ups are an odd number of lines, %zu",
                          shape->n);
    if (shape->type != MOERT_NUMBER_F32 && shape->type != MOERT_NUMBER_BF16)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "weights are packed as f32 or bf16, not as type %d",
                          (int)shape->type);
    MOERT_TRY(moert_to_int(shape->groups, "groups of a packed weight", &narrow));
    MOERT_TRY(moert_to_int(shape->n, "lines of a packed weight", &narrow));
    return moert_to_int(shape->k, "columns of a packed weight", &narrow);
}

size_t moert_packed_plan(const moert_device *device, const moert_packed_shape *shape,
                         moert_packed *packed) {
    *packed = (moert_packed){.shape = *shape, .packing = moert_backend_get(device)->prepack};
    const size_t bytes = packed->packing != NULL ? packed->packing->plan(device, packed) : 0;
    return bytes <= moert_device_describe(device)->largest_bytes ? bytes : 0;
}

size_t moert_packed_need(const moert_device *device, const moert_packed_shape *shape) {
    moert_packed packed;
    return moert_packed_plan(device, shape, &packed);
}

moert_status moert_packed_create(moert_device *device, const moert_packed_shape *shape,
                                 moert_packed **packed) {
    MOERT_TRY(check_shape(shape));
    MOERT_TRY(moert_backend_check(device));
    moert_packed planned, *made;
    const size_t bytes = moert_packed_plan(device, shape, &planned);
    *packed = NULL;
    if (bytes == 0)
        return MOERT_OK;
    MOERT_TRY(MOERT_NEW(&made));
    *made = planned;
    const moert_status status = moert_buffer_create(device, bytes, &made->panels);
    if (status != MOERT_OK) {
        free(made);
        return status;
    }
    *packed = made;
    return MOERT_OK;
}

/* For a profile: the source, and the panels. */
static void tell_work(const moert_packed *packed, size_t source_bytes) {
    moert_profile_work(moert_buffer_device(packed->panels), "gemm/packed", 0.0,
                       (double)(source_bytes + moert_packed_bytes(packed)));
}

moert_status moert_packed_fill(moert_packed *packed, const moert_buffer *weight) {
    if (packed == NULL)
        return MOERT_OK;
    const moert_packed_shape *shape = &packed->shape;
    MOERT_TRY(moert_check_buffer("weight", weight, shape->groups * shape->n, shape->k, shape->k,
                                 sizeof(float)));
    tell_work(packed, shape->groups * shape->n * shape->k * sizeof(float));
    return packed->packing->fill(packed, weight, NULL);
}

moert_status moert_packed_fill_coded(moert_packed *packed, const moert_coded *coded) {
    if (packed == NULL)
        return MOERT_OK;
    const moert_packed_shape *p = &packed->shape;
    if (coded->flipped && p->use == MOERT_PACKED_GATED)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "a transposed weight is not packed for a GLU");
    const moert_quantizer how = {.format = coded->format, .axis = coded->axis};
    const size_t rows = coded->flipped ? p->k : p->n, columns = coded->flipped ? p->n : p->k;
    const moert_quantized_shape shape = moert_quantized_shape_of(
        &how, p->groups * rows, columns,
        p->groups * moert_ceil_div(rows, moert_format_block(coded->format)));
    MOERT_TRY(moert_check_buffer("q", coded->q, shape.q_lines, shape.q_bytes, shape.q_bytes, 1));
    MOERT_TRY(moert_check_buffer("scale", coded->scale, shape.scale_lines, shape.scales,
                                 shape.scales, moert_format_scale_bytes(coded->format)));
    if (coded->global != NULL)
        MOERT_TRY(moert_check_buffer("global scale", coded->global, 1, p->groups, p->groups,
                                     sizeof(float)));
    tell_work(packed, shape.q_lines * shape.q_bytes);
    return packed->packing->fill(packed, NULL, coded);
}

size_t moert_packed_bytes(const moert_packed *packed) {
    return packed != NULL ? moert_buffer_bytes(packed->panels) : 0;
}

void moert_packed_destroy(moert_packed *packed) {
    if (packed == NULL)
        return;
    moert_buffer_destroy(packed->panels);
    free(packed);
}

/* ---- packings that are made when they pay ---- */

void moert_packings_changed(moert_packings *packings) {
    for (size_t use = 0; use < MOERT_PACKED_USES; use++)
        packings->products[use] = 0;
}

moert_status moert_packings_take(moert_packings *packings, moert_gemm *gemm) {
    moert_device *device = moert_buffer_device(gemm->weight);
    const moert_packing *packing = moert_backend_get(device)->prepack;
    moert_packed_for use = moert_packed_use(gemm);
    gemm->packed = NULL;
    if (gemm->groups.rows == 0 || packing == NULL)
        return MOERT_OK;
    if (packing->any_use)
        use = MOERT_PACKED_FORWARD;
    moert_packed **packed = &packings->packed[use];
    if (++packings->products[use] < packing->pays_at)
        return MOERT_OK;
    const moert_packed_shape shape = {gemm->shared_weight ? 1 : gemm->groups.count, gemm->n,
                                      gemm->k, use, gemm->type};
    if (*packed == NULL)
        MOERT_TRY(moert_packed_create(device, &shape, packed));
    if (packings->products[use] == packing->pays_at)
        MOERT_TRY(moert_packed_fill(*packed, gemm->weight));
    gemm->packed = *packed;
    return MOERT_OK;
}

moert_buffer *moert_packings_copy(const moert_packings *packings, size_t n) {
    const moert_packed *packed = packings->packed[MOERT_PACKED_FORWARD];
    if (packed == NULL || !packed->packing->in_order || !packed->packing->any_use)
        return NULL;
    const moert_packed_shape *shape = &packed->shape;
    const bool whole = shape->groups * shape->n * shape->k == n;
    return whole && shape->type == MOERT_NUMBER_BF16 ? packed->panels : NULL;
}

void moert_packings_rounded(moert_packings *packings) {
    const moert_packed *packed = packings->packed[MOERT_PACKED_FORWARD];
    packings->products[MOERT_PACKED_FORWARD] = packed->packing->pays_at;
}

size_t moert_packings_bytes(const moert_packings *packings) {
    size_t bytes = 0;
    for (size_t use = 0; use < MOERT_PACKED_USES; use++)
        bytes += moert_packed_bytes(packings->packed[use]);
    return bytes;
}

size_t moert_packings_need(const moert_device *device, const moert_packed_shape *shape,
                           size_t products) {
    const moert_packing *packing = moert_backend_get(device)->prepack;
    moert_packed_shape dgrad = *shape;
    dgrad.use = MOERT_PACKED_DGRAD;
    if (packing == NULL || products < packing->pays_at)
        return 0;
    return moert_packed_need(device, shape) +
           (packing->any_use ? 0 : moert_packed_need(device, &dgrad));
}

void moert_packings_free(moert_packings *packings) {
    for (size_t use = 0; use < MOERT_PACKED_USES; use++)
        moert_packed_destroy(packings->packed[use]);
}
