/* Prepacked weights: checks, memory, and when a weight is prepacked. The backend fills the
 * panels. */
#include "gemm/prepacked.h"

#include <stdlib.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "device/buffer.h"
#include "device/device.h"
#include "device/profile/profile.h"
#include "gemm/backend.h"

static moert_status check_shape(const moert_panels_shape *shape) {
    int narrow;
    if (shape->n == 0 || shape->k == 0)
        return MOERT_FAIL(ERROR_USAGE,
                          "a prepacked weight needs n and k of 1 or more, not %zu "
                          "and %zu",
                          shape->n, shape->k);
    if (shape->use == MOERT_PANELS_GATED && shape->n % 2 != 0)
        return MOERT_FAIL(ERROR_USAGE, "a weight of gates and ups needs an even n, not %zu",
                          shape->n);
    if (shape->type != MOERT_DTYPE_F32 && shape->type != MOERT_DTYPE_BF16)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "weights are prepacked as f32 or bf16, not as type %d",
                          (int)shape->type);
    MOERT_TRY(moert_to_int(shape->groups, "groups of a prepacked weight", &narrow));
    MOERT_TRY(moert_to_int(shape->n, "rows of a prepacked weight", &narrow));
    return moert_to_int(shape->k, "columns of a prepacked weight", &narrow);
}

static size_t plan(const moert_device *device, const moert_panels_shape *shape,
                   const moert_choices *choices, bool few_rows, moert_panels *panels) {
    *panels = (moert_panels){
        .shape = *shape, .prepacker = moert_backend_get(device)->prepacker, .few_rows = few_rows};
    const size_t bytes =
        panels->prepacker != NULL ? panels->prepacker->plan(device, choices, panels) : 0;
    return bytes <= moert_device_describe(device)->largest_bytes ? bytes : 0;
}

size_t moert_panels_plan(const moert_device *device, const moert_panels_shape *shape,
                         const moert_choices *choices, moert_panels *panels) {
    return plan(device, shape, choices, false, panels);
}

size_t moert_panels_need(const moert_device *device, const moert_panels_shape *shape) {
    moert_panels panels;
    return moert_panels_plan(device, shape, NULL, &panels);
}

static moert_status create(moert_device *device, const moert_panels_shape *shape,
                           const moert_choices *choices, bool few_rows, moert_panels **panels) {
    MOERT_TRY(check_shape(shape));
    MOERT_TRY(moert_choices_check_whole(choices));
    MOERT_TRY(moert_backend_check(device));
    moert_panels planned, *made;
    const size_t bytes = plan(device, shape, choices, few_rows, &planned);
    *panels = NULL;
    if (bytes == 0)
        return MOERT_OK;
    MOERT_TRY(MOERT_NEW(&made));
    *made = planned;
    const moert_status status = moert_buffer_create(device, bytes, &made->buffer);
    if (status != MOERT_OK) {
        free(made);
        return status;
    }
    *panels = made;
    return MOERT_OK;
}

moert_status moert_panels_create(moert_device *device, const moert_panels_shape *shape,
                                 moert_panels **panels) {
    return create(device, shape, NULL, false, panels);
}

moert_status moert_panels_create_with(moert_device *device, const moert_panels_shape *shape,
                                      const moert_choices *choices, moert_panels **panels) {
    return create(device, shape, choices, false, panels);
}

/* Reports the bytes of the source and the panels to the profile. */
static void report_work(const moert_panels *panels, size_t source_bytes) {
    moert_profile_work(moert_buffer_device(panels->buffer), "gemm/prepacked", 0.0,
                       (double)(source_bytes + moert_panels_bytes(panels)));
}

moert_status moert_panels_fill_as(moert_panels *panels, const moert_buffer *weight,
                                  moert_dtype type) {
    if (panels == NULL)
        return MOERT_OK;
    const moert_panels_shape *shape = &panels->shape;
    const size_t bytes = moert_dtype_bits(type) / 8;
    MOERT_TRY(
        moert_check_buffer("weight", weight, shape->groups * shape->n, shape->k, shape->k, bytes));
    report_work(panels, shape->groups * shape->n * shape->k * bytes);
    return panels->prepacker->fill(panels, weight, type);
}

moert_status moert_panels_fill(moert_panels *panels, const moert_buffer *weight) {
    return moert_panels_fill_as(panels, weight, MOERT_DTYPE_F32);
}

static bool is_in_order(const moert_panels *panels) {
    return panels->prepacker->in_order && panels->shape.type == MOERT_DTYPE_BF16;
}

bool moert_panels_in_order(const moert_device *device, const moert_panels_shape *shape) {
    moert_panels panels;
    return moert_panels_plan(device, shape, NULL, &panels) > 0 && is_in_order(&panels);
}

moert_buffer *moert_panels_values(const moert_panels *panels) {
    return panels != NULL && is_in_order(panels) ? panels->buffer : NULL;
}

size_t moert_panels_bytes(const moert_panels *panels) {
    return panels != NULL ? moert_buffer_bytes(panels->buffer) : 0;
}

void moert_panels_destroy(moert_panels *panels) {
    if (panels == NULL)
        return;
    moert_buffer_destroy(panels->buffer);
    free(panels);
}

/* ---- the panels of a weight, made when they pay ---- */

void moert_weight_cache_changed(moert_weight_cache *cache) {
    for (size_t use = 0; use < MOERT_PANELS_USES; use++)
        cache->gemms[use] = 0;
}

moert_status moert_weight_cache_take(moert_weight_cache *cache, moert_gemm *gemm) {
    moert_device *device = moert_buffer_device(gemm->weight.buffer);
    const moert_prepacker *prepacker = moert_backend_get(device)->prepacker;
    moert_panels_use use = moert_panels_use_of(gemm);
    gemm->panels = NULL;
    if (gemm->groups.rows == 0 || prepacker == NULL)
        return MOERT_OK;
    if (prepacker->any_use)
        use = MOERT_PANELS_FORWARD;
    moert_panels **panels = &cache->panels[use];
    /* pays_at is 1 for tensor cores, which always need the panels */
    const size_t pays_at = cache->is_fixed ? 1 : prepacker->pays_at;
    const bool repeats = cache->repeats && pays_at > 1;
    /* the GEMMs of a weight's parts count as one */
    const bool counts = !repeats && (gemm->groups.first == 0 || cache->gemms[use] == 0);
    if (counts)
        cache->gemms[use]++;
    if (cache->gemms[use] < pays_at)
        return MOERT_OK;
    const moert_panels_shape shape = {gemm->groups.shared ? 1 : gemm->groups.count, gemm->n,
                                      gemm->k, use, moert_gemm_type(gemm)};
    if (*panels == NULL)
        MOERT_TRY(create(device, &shape, NULL, cache->is_fixed, panels));
    if (cache->gemms[use] == pays_at && counts)
        MOERT_TRY(moert_panels_fill(*panels, gemm->weight.buffer));
    gemm->panels = *panels;
    return MOERT_OK;
}

moert_buffer *moert_weight_cache_copy(const moert_weight_cache *cache, size_t n) {
    const moert_panels *panels = cache->panels[MOERT_PANELS_FORWARD];
    moert_buffer *values = moert_panels_values(panels);
    if (values == NULL || !panels->prepacker->any_use)
        return NULL;
    const moert_panels_shape *shape = &panels->shape;
    return shape->groups * shape->n * shape->k == n ? values : NULL;
}

void moert_weight_cache_rounded(moert_weight_cache *cache) {
    const moert_panels *panels = cache->panels[MOERT_PANELS_FORWARD];
    cache->gemms[MOERT_PANELS_FORWARD] = panels->prepacker->pays_at;
}

size_t moert_weight_cache_need(const moert_device *device, const moert_panels_shape *shape,
                               size_t gemms) {
    const moert_prepacker *prepacker = moert_backend_get(device)->prepacker;
    moert_panels_shape dgrad = *shape;
    dgrad.use = MOERT_PANELS_DGRAD;
    if (prepacker == NULL || gemms < prepacker->pays_at)
        return 0;
    return moert_panels_need(device, shape) +
           (prepacker->any_use ? 0 : moert_panels_need(device, &dgrad));
}

void moert_weight_cache_free(moert_weight_cache *cache) {
    for (size_t use = 0; use < MOERT_PANELS_USES; use++)
        moert_panels_destroy(cache->panels[use]);
}
