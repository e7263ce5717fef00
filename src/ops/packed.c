/* Weights packed once for many products, by the backend in use and in the order of its kernels. */
#include <stdlib.h>

#include "base/memory.h"
#include "ops/backend.h"

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

moert_status moert_packed_create(moert_device *device, const moert_packed_shape *shape,
                                 moert_packed **packed) {
    MOERT_TRY(check_shape(shape));
    const moert_packing *packing = moert_backend_get()->packing;
    moert_packed *made;
    *packed = NULL;
    if (packing == NULL)
        return MOERT_OK;
    MOERT_TRY(MOERT_NEW(&made));
    *made = (moert_packed){.shape = *shape, .packing = packing};
    const size_t bytes = packing->plan(device, made);
    const moert_status status =
        bytes > 0 ? moert_buffer_create(device, bytes, &made->panels) : MOERT_OK;
    if (status != MOERT_OK || bytes == 0) {
        free(made);
        return status;
    }
    *packed = made;
    return MOERT_OK;
}

moert_status moert_packed_fill(moert_packed *packed, const moert_buffer *weight) {
    if (packed == NULL)
        return MOERT_OK;
    const moert_packed_shape *shape = &packed->shape;
    MOERT_TRY(moert_check_buffer("weight", weight, shape->groups * shape->n, shape->k, shape->k,
                                 sizeof(float)));
    return packed->packing->fill(packed, weight);
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
