/* Checks the arguments of the grouped operations and hands them to the backend in use. */
#include <stdint.h>

#include "base/memory.h"
#include "base/number.h"
#include "device/profile/profile.h"
#include "gemm/backend.h"

/* moert_check_buffer of floats. */
static moert_status check_buffer(const char *name, const moert_buffer *buffer, size_t lines,
                                 size_t width, size_t stride) {
    return moert_check_buffer(name, buffer, lines, width, stride, sizeof(float));
}

/* What an operation takes; the row factors may be of a smaller type. */
enum { NEEDS_X = 1, NEEDS_WEIGHT = 2, NEEDS_BIAS = 4, FACTOR_X = 8, FACTOR_Y = 16 };

/* The bytes of a number of a row matrix, which is a factor or the result. */
static size_t number_bytes(const moert_gemm *gemm, bool factor) {
    return moert_number_bits(factor ? gemm->type : gemm->result) / 8;
}

static moert_status check_shape(const moert_gemm *gemm, unsigned needs) {
    int narrow;
    MOERT_TRY(moert_to_int(gemm->groups.rows, "rows of a grouped GEMM", &narrow));
    MOERT_TRY(moert_to_int(gemm->n, "columns of y", &narrow));
    MOERT_TRY(moert_to_int(gemm->k, "columns of x", &narrow));
    MOERT_TRY(moert_to_int(gemm->groups.count, "groups of a grouped GEMM", &narrow));
    if (gemm->n == 0 || ((needs & NEEDS_X) != 0 && gemm->k == 0))
        return MOERT_FAIL(ERROR_USAGE, "a grouped GEMM needs columns; n = %zu, k = %zu", gemm->n,
                          gemm->k);
    if (gemm->ldy < gemm->y_column || gemm->ldy - gemm->y_column < gemm->n)
        return MOERT_FAIL(ERROR_USAGE, "columns [%zu, +%zu) of y lie outside its stride %zu",
                          gemm->y_column, gemm->n, gemm->ldy);
    if (gemm->type != MOERT_NUMBER_F32 && gemm->type != MOERT_NUMBER_BF16)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "a grouped GEMM takes f32 or bf16, not type %d",
                          (int)gemm->type);
    return MOERT_OK;
}

/* What takes part: groups in order, and their rows, as far as the host can tell. */
static moert_status check_part(const moert_gemm *gemm, unsigned needs) {
    const moert_part part = gemm->part;
    const unsigned rows_only = NEEDS_X | NEEDS_WEIGHT;
    if (part.end == 0)
        return MOERT_OK;
    if ((needs & rows_only) != rows_only || (needs & FACTOR_X && needs & FACTOR_Y) ||
        gemm->shared_weight)
        return MOERT_FAIL(ERROR_USAGE, "a part of the groups is for forward and dgrad, by a weight "
                                       "for each group");
    if (part.first >= part.end || part.end > gemm->groups.count || part.first_row > part.end_row ||
        part.end_row > gemm->groups.rows)
        return MOERT_FAIL(ERROR_USAGE,
                          "groups [%zu, %zu) with rows [%zu, %zu) are no part of %zu groups with "
                          "%zu rows",
                          part.first, part.end, part.first_row, part.end_row, gemm->groups.count,
                          gemm->groups.rows);
    return MOERT_OK;
}

/* With the strides that are 0. */
static moert_gemm with_strides(const moert_gemm *gemm) {
    moert_gemm full = *gemm;
    full.ldx = gemm->ldx > 0 ? gemm->ldx : gemm->k;
    full.ldy = gemm->ldy > 0 ? gemm->ldy : gemm->n;
    return full;
}

static moert_status check_gemm(const moert_gemm *gemm, unsigned needs, moert_gemm *full) {
    MOERT_TRY(check_part(gemm, needs));
    *full = with_strides(gemm);
    full->part = moert_part_of(gemm);
    MOERT_TRY(check_shape(full, needs));
    const size_t rows = gemm->groups.rows, weights = gemm->shared_weight ? 1 : gemm->groups.count;
    MOERT_TRY(check_buffer("ends", gemm->groups.ends, 1, gemm->groups.count, gemm->groups.count));
    if (gemm->groups.ends != NULL)
        MOERT_TRY(moert_backend_check(moert_buffer_device(gemm->groups.ends)));
    MOERT_TRY(moert_check_buffer("y", gemm->y, rows, gemm->y_column + gemm->n, full->ldy,
                                 number_bytes(gemm, (needs & FACTOR_Y) != 0)));
    if ((needs & NEEDS_X) != 0)
        MOERT_TRY(moert_check_buffer("x", gemm->x, rows, gemm->k, full->ldx,
                                     number_bytes(gemm, (needs & FACTOR_X) != 0)));
    if ((needs & NEEDS_WEIGHT) != 0)
        MOERT_TRY(check_buffer("weight", gemm->weight, weights * gemm->n, gemm->k, gemm->k));
    if ((needs & NEEDS_BIAS) != 0)
        MOERT_TRY(check_buffer("bias", gemm->bias, weights, gemm->n, gemm->n));
    return MOERT_OK;
}

/* For a profile: 2 M N K, and every factor and the result once. */
static void tell_product(const moert_gemm *gemm, size_t weights, unsigned factors) {
    const moert_part part = moert_part_of(gemm);
    const double m = (double)(part.end_row - part.first_row);
    const double n = (double)gemm->n, k = (double)gemm->k;
    const moert_packed *packed = gemm->packed;
    const double weight = packed == NULL ? (double)sizeof(float)
                                         : (double)moert_packed_bytes(packed) /
                                               ((double)packed->shape.groups * n * k);
    const double x = (double)number_bytes(gemm, (factors & FACTOR_X) != 0);
    const double y = (double)number_bytes(gemm, (factors & FACTOR_Y) != 0);
    moert_profile_work(moert_buffer_device(gemm->groups.ends), "gemm/gemm", 2.0 * m * n * k,
                       x * m * k + y * m * n + weight * (double)weights * n * k);
}

static size_t weights_of(const moert_gemm *gemm) {
    return gemm->shared_weight ? 1 : gemm->groups.count;
}

/* Weights that a product reads. */
static size_t weights_read(const moert_gemm *gemm) {
    const moert_part part = moert_part_of(gemm);
    return gemm->shared_weight ? 1 : part.end - part.first;
}

static bool has_rows(const moert_gemm *gemm) {
    const moert_part part = moert_part_of(gemm);
    return gemm->groups.count > 0 && part.end_row > part.first_row;
}

static moert_status check_packed(const moert_gemm *gemm, moert_packed_for use) {
    static const char *const uses[] = {"forward", "dgrad", "forward with a GLU"};
    if (gemm->packed == NULL)
        return MOERT_OK;
    const moert_packed_shape *s = &gemm->packed->shape;
    const size_t weights = weights_of(gemm);
    if (s->groups != weights || s->n != gemm->n || s->k != gemm->k || s->type != gemm->type ||
        (s->use != use && !gemm->packed->packing->any_use))
        return MOERT_FAIL(ERROR_USAGE,
                          "a weight packed as [%zu,%zu,%zu] for %s in type %d serves no %s in type "
                          "%d of [%zu,%zu,%zu]",
                          s->groups, s->n, s->k, uses[s->use], (int)s->type, uses[use],
                          (int)gemm->type, weights, gemm->n, gemm->k);
    return MOERT_OK;
}

moert_status moert_check_forward(const moert_gemm *gemm, moert_packed_for use, moert_gemm *full) {
    const unsigned bias = gemm->bias != NULL ? NEEDS_BIAS : 0;
    MOERT_TRY(check_gemm(gemm, NEEDS_X | NEEDS_WEIGHT | bias | FACTOR_X, full));
    MOERT_TRY(check_packed(gemm, use));
    if (gemm->accumulate)
        return MOERT_FAIL(ERROR_USAGE, "the forward GEMM does not accumulate");
    if (has_rows(gemm))
        tell_product(gemm, weights_read(gemm), FACTOR_X);
    return MOERT_OK;
}

static const moert_backend *backend_of(const moert_gemm *gemm) {
    return moert_backend_get(moert_buffer_device(gemm->groups.ends));
}

/* Strides as check_gemm fills them in. */
static bool rounds(const moert_packing *packing, const moert_gemm *full) {
    return packing != NULL && packing->rounds != NULL && full->result == MOERT_NUMBER_BF16 &&
           packing->rounds(full);
}

bool moert_gemm_rounds(const moert_device *device, const moert_gemm *gemm) {
    const moert_packed_shape shape = {weights_of(gemm), gemm->n, gemm->k, MOERT_PACKED_FORWARD,
                                      gemm->type};
    moert_gemm full = with_strides(gemm);
    full.result = MOERT_NUMBER_BF16;
    return rounds(moert_backend_get(device)->packing, &full) &&
           moert_packed_need(device, &shape) > 0;
}

size_t moert_gemm_split_bytes(const moert_device *device, const moert_gemm *gemm) {
    const moert_packing *packing = moert_backend_get(device)->packing;
    const moert_gemm full = with_strides(gemm);
    return packing != NULL && packing->split_bytes != NULL ? packing->split_bytes(device, &full)
                                                           : 0;
}

bool moert_gemm_scatters(const moert_device *device, const moert_gemm *gemm) {
    const moert_packing *packing = moert_backend_get(device)->packing;
    return moert_gemm_rounds(device, gemm) && packing->scatters != NULL &&
           packing->scatters(device, gemm);
}

moert_status moert_check_result(const moert_gemm *full) {
    if (full->scatter.places != NULL &&
        (full->result == MOERT_NUMBER_F32 ||
         !moert_gemm_scatters(moert_buffer_device(full->groups.ends), full)))
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "results of type %d anywhere: the %s backend scatters none of this "
                          "product",
                          (int)full->result, backend_of(full)->name);
    if (full->result == MOERT_NUMBER_F32)
        return MOERT_OK;
    if (full->accumulate || full->packed == NULL || !rounds(full->packed->packing, full))
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "results of type %d: the %s backend rounds none of this product",
                          (int)full->result, backend_of(full)->name);
    return MOERT_OK;
}

moert_status moert_gemm_forward(const moert_gemm *gemm) {
    moert_gemm full;
    MOERT_TRY(moert_check_forward(gemm, MOERT_PACKED_FORWARD, &full));
    if (!has_rows(gemm))
        return MOERT_OK;
    MOERT_TRY(moert_check_result(&full));
    MOERT_TRY(backend_of(gemm)->gemm_forward(&full));
    return MOERT_OK;
}

moert_status moert_gemm_dgrad(const moert_gemm *gemm) {
    moert_gemm full;
    MOERT_TRY(check_gemm(gemm, NEEDS_X | NEEDS_WEIGHT | FACTOR_Y, &full));
    MOERT_TRY(check_packed(gemm, MOERT_PACKED_DGRAD));
    if (!has_rows(gemm))
        return MOERT_OK;
    MOERT_TRY(moert_check_result(&full));
    tell_product(gemm, weights_read(gemm), FACTOR_Y);
    MOERT_TRY(backend_of(gemm)->gemm_dgrad(&full));
    return MOERT_OK;
}

moert_status moert_gemm_wgrad(const moert_gemm *gemm) {
    moert_gemm full, own = *gemm;
    own.shared_weight = false; /* one partial per group, always */
    MOERT_TRY(check_gemm(&own, NEEDS_X | NEEDS_WEIGHT | FACTOR_X | FACTOR_Y, &full));
    if (gemm->groups.count == 0)
        return MOERT_OK;
    tell_product(gemm, gemm->groups.count, FACTOR_X | FACTOR_Y);
    MOERT_TRY(backend_of(gemm)->gemm_wgrad(&full));
    return MOERT_OK;
}

moert_status moert_gemm_bias_grad(const moert_gemm *gemm) {
    moert_gemm full, own = *gemm;
    own.shared_weight = false;
    MOERT_TRY(check_gemm(&own, NEEDS_BIAS | FACTOR_Y, &full));
    if (gemm->groups.count == 0)
        return MOERT_OK;
    MOERT_TRY(backend_of(gemm)->gemm_bias_grad(&full));
    return MOERT_OK;
}
