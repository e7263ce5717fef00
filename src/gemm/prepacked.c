/* Prepacked weights: checks, memory, and when a weight is prepacked. The backend fills them. */
#include <stdlib.h>

#include "base/memory.h"
#include "device/device.h"
#include "device/profile/profile.h"
#include "gemm/backend.h"

static moert_status check_shape(const moert_prepacked_shape *shape) {
    int narrow;
    if (shape->n == 0 || shape->k == 0)
        return MOERT_FAIL(ERROR_USAGE,
                          "a prepacked weight needs n and k of 1 or more, not %zu "
                          "and %zu",
                          shape->n, shape->k);
    if (shape->use == MOERT_PREPACKED_GATED && shape->n % 2 != 0)
        return MOERT_FAIL(ERROR_USAGE, "a weight of gates and ups needs an even n, not %zu",
                          shape->n);
    if (shape->type != MOERT_DTYPE_F32 && shape->type != MOERT_DTYPE_BF16)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "weights are prepacked as f32 or bf16, not as type %d",
                          (int)shape->type);
    MOERT_TRY(moert_to_int(shape->groups, "groups of a prepacked weight", &narrow));
    MOERT_TRY(moert_to_int(shape->n, "rows of a prepacked weight", &narrow));
    return moert_to_int(shape->k, "columns of a prepacked weight", &narrow);
}

size_t moert_prepacked_plan(const moert_device *device, const moert_prepacked_shape *shape,
                            moert_prepacked *prepacked) {
    *prepacked = (moert_prepacked){.shape = *shape, .prepack = moert_backend_get(device)->prepack};
    const size_t bytes =
        prepacked->prepack != NULL ? prepacked->prepack->plan(device, prepacked) : 0;
    return bytes <= moert_device_describe(device)->largest_bytes ? bytes : 0;
}

size_t moert_prepacked_need(const moert_device *device, const moert_prepacked_shape *shape) {
    moert_prepacked prepacked;
    return moert_prepacked_plan(device, shape, &prepacked);
}

moert_status moert_prepacked_create(moert_device *device, const moert_prepacked_shape *shape,
                                    moert_prepacked **prepacked) {
    MOERT_TRY(check_shape(shape));
    MOERT_TRY(moert_backend_check(device));
    moert_prepacked planned, *made;
    const size_t bytes = moert_prepacked_plan(device, shape, &planned);
    *prepacked = NULL;
    if (bytes == 0)
        return MOERT_OK;
    MOERT_TRY(MOERT_NEW(&made));
    *made = planned;
    const moert_status status = moert_buffer_create(device, bytes, &made->panels);
    if (status != MOERT_OK) {
        free(made);
        return status;
    }
    *prepacked = made;
    return MOERT_OK;
}

/* Reports the bytes of the source and the panels to the profile. */
static void report_work(const moert_prepacked *prepacked, size_t source_bytes) {
    moert_profile_work(moert_buffer_device(prepacked->panels), "gemm/prepacked", 0.0,
                       (double)(source_bytes + moert_prepacked_bytes(prepacked)));
}

moert_status moert_prepacked_fill(moert_prepacked *prepacked, const moert_buffer *weight) {
    if (prepacked == NULL)
        return MOERT_OK;
    const moert_prepacked_shape *shape = &prepacked->shape;
    MOERT_TRY(moert_check_buffer("weight", weight, shape->groups * shape->n, shape->k, shape->k,
                                 sizeof(float)));
    report_work(prepacked, shape->groups * shape->n * shape->k * sizeof(float));
    return prepacked->prepack->fill(prepacked, weight, NULL);
}

moert_status moert_prepacked_fill_quantized(moert_prepacked *prepacked,
                                            const moert_quantized *quantized) {
    if (prepacked == NULL)
        return MOERT_OK;
    const moert_prepacked_shape *p = &prepacked->shape;
    if (quantized->transposed && p->use == MOERT_PREPACKED_GATED)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "a transposed weight cannot be prepacked for a GLU");
    const moert_quantizer how = {.format = quantized->format, .axis = quantized->axis};
    const size_t rows = quantized->transposed ? p->k : p->n,
                 columns = quantized->transposed ? p->n : p->k;
    const moert_quantized_shape shape = moert_quantized_shape_of(
        &how, p->groups * rows, columns,
        p->groups * moert_ceil_div(rows, moert_format_block(quantized->format)));
    MOERT_TRY(
        moert_check_buffer("q", quantized->q, shape.q_lines, shape.q_bytes, shape.q_bytes, 1));
    MOERT_TRY(moert_check_buffer("scale", quantized->scale, shape.scale_lines, shape.scales,
                                 shape.scales, moert_format_scale_bytes(quantized->format)));
    if (quantized->global != NULL)
        MOERT_TRY(moert_check_buffer("global scale", quantized->global, 1, p->groups, p->groups,
                                     sizeof(float)));
    report_work(prepacked, shape.q_lines * shape.q_bytes);
    return prepacked->prepack->fill(prepacked, NULL, quantized);
}

size_t moert_prepacked_bytes(const moert_prepacked *prepacked) {
    return prepacked != NULL ? moert_buffer_bytes(prepacked->panels) : 0;
}

void moert_prepacked_destroy(moert_prepacked *prepacked) {
    if (prepacked == NULL)
        return;
    moert_buffer_destroy(prepacked->panels);
    free(prepacked);
}

/* ---- the copies of a weight, made when they pay ---- */

void moert_prepacks_changed(moert_prepacks *prepacks) {
    for (size_t use = 0; use < MOERT_PREPACKED_USES; use++)
        prepacks->gemms[use] = 0;
}

moert_status moert_prepacks_take(moert_prepacks *prepacks, moert_gemm *gemm) {
    moert_device *device = moert_buffer_device(gemm->weight.buffer);
    const moert_prepack *prepack = moert_backend_get(device)->prepack;
    moert_prepacked_use use = moert_prepacked_use_of(gemm);
    gemm->prepacked = NULL;
    if (gemm->groups.rows == 0 || prepack == NULL)
        return MOERT_OK;
    if (prepack->any_use)
        use = MOERT_PREPACKED_FORWARD;
    moert_prepacked **prepacked = &prepacks->prepacked[use];
    /* tensor cores cannot do without the copy */
    const bool repeats = prepacks->repeats && prepack->pays_at > 1;
    /* the GEMMs of a weight's parts count as one */
    const bool counts = !repeats && (gemm->groups.first == 0 || prepacks->gemms[use] == 0);
    if (counts)
        prepacks->gemms[use]++;
    if (prepacks->gemms[use] < prepack->pays_at)
        return MOERT_OK;
    const moert_prepacked_shape shape = {gemm->groups.shared ? 1 : gemm->groups.count, gemm->n,
                                         gemm->k, use, moert_gemm_type(gemm)};
    if (*prepacked == NULL)
        MOERT_TRY(moert_prepacked_create(device, &shape, prepacked));
    if (prepacks->gemms[use] == prepack->pays_at && counts)
        MOERT_TRY(moert_prepacked_fill(*prepacked, gemm->weight.buffer));
    gemm->prepacked = *prepacked;
    return MOERT_OK;
}

moert_buffer *moert_prepacks_copy(const moert_prepacks *prepacks, size_t n) {
    const moert_prepacked *prepacked = prepacks->prepacked[MOERT_PREPACKED_FORWARD];
    if (prepacked == NULL || !prepacked->prepack->in_order || !prepacked->prepack->any_use)
        return NULL;
    const moert_prepacked_shape *shape = &prepacked->shape;
    const bool whole = shape->groups * shape->n * shape->k == n;
    return whole && shape->type == MOERT_DTYPE_BF16 ? prepacked->panels : NULL;
}

void moert_prepacks_rounded(moert_prepacks *prepacks) {
    const moert_prepacked *prepacked = prepacks->prepacked[MOERT_PREPACKED_FORWARD];
    prepacks->gemms[MOERT_PREPACKED_FORWARD] = prepacked->prepack->pays_at;
}

size_t moert_prepacks_need(const moert_device *device, const moert_prepacked_shape *shape,
                           size_t gemms) {
    const moert_prepack *prepack = moert_backend_get(device)->prepack;
    moert_prepacked_shape dgrad = *shape;
    dgrad.use = MOERT_PREPACKED_DGRAD;
    if (prepack == NULL || gemms < prepack->pays_at)
        return 0;
    return moert_prepacked_need(device, shape) +
           (prepack->any_use ? 0 : moert_prepacked_need(device, &dgrad));
}

void moert_prepacks_free(moert_prepacks *prepacks) {
    for (size_t use = 0; use < MOERT_PREPACKED_USES; use++)
        moert_prepacked_destroy(prepacks->prepacked[use]);
}
