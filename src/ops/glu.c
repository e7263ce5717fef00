/* Checks the arguments of the GLU, alone and behind a grouped GEMM, and hands them to the backend
 * in use. */
#include "base/memory.h"
#include "base/number.h"
#include "device/profile.h"
#include "ops/backend.h"

/* Of floats. */
static moert_status check(const char *name, const moert_buffer *buffer, size_t lines, size_t width,
                          size_t stride) {
    return moert_check_buffer(name, buffer, lines, width, stride, sizeof(float));
}

static moert_status check_glu(const moert_glu *glu, bool backward, moert_glu *full) {
    *full = *glu;
    full->prob_stride = glu->prob_stride > 0 ? glu->prob_stride : 1;
    int narrow;
    MOERT_TRY(moert_to_int(glu->rows, "rows of a GLU", &narrow));
    MOERT_TRY(moert_to_int(2 * glu->width, "columns of a GLU", &narrow));
    if (glu->first_row > glu->rows)
        return MOERT_FAIL(ERROR_USAGE, "rows [%zu, %zu) of a GLU", glu->first_row, glu->rows);
    if (glu->type != MOERT_NUMBER_F32 && glu->type != MOERT_NUMBER_BF16)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "a GLU gives f32 or bf16, not type %d",
                          (int)glu->type);
    const size_t bytes = moert_number_bits(glu->type) / 8;
    if (glu->width == 0 || !(glu->form.limit > 0.0f))
        return MOERT_FAIL(ERROR_USAGE, "a GLU needs columns and a positive limit, not %zu and %g",
                          glu->width, (double)glu->form.limit);
    MOERT_TRY(check("v", glu->v, glu->rows, 2 * glu->width, 2 * glu->width));
    if (glu->prob != NULL)
        MOERT_TRY(check("prob", glu->prob, glu->rows, 1, full->prob_stride));
    if (!backward)
        return moert_check_buffer("h", glu->h, glu->rows, glu->width, glu->width, bytes);
    MOERT_TRY(check("dh", glu->dh, glu->rows, glu->width, glu->width));
    MOERT_TRY(moert_check_buffer("dv", glu->dv, glu->rows, 2 * glu->width, 2 * glu->width, bytes));
    if (glu->dprob != NULL)
        MOERT_TRY(check("dprob", glu->dprob, glu->rows, 1, full->prob_stride));
    return MOERT_OK;
}

/* For a profile: per row, so many times I floats, results and weights. */
static void tell_glu(const moert_glu *glu, size_t widths, size_t results, size_t weights) {
    const size_t result = results * glu->width * moert_number_bits(glu->type) / 8;
    moert_profile_work(moert_buffer_device(glu->v), "glu", 0.0,
                       (double)((glu->rows - glu->first_row) *
                                (sizeof(float) * (widths * glu->width + weights) + result)));
}

moert_status moert_glu_forward(const moert_glu *glu) {
    moert_glu full;
    MOERT_TRY(check_glu(glu, false, &full));
    if (glu->rows == glu->first_row)
        return MOERT_OK;
    tell_glu(glu, 2, 1, 1);
    MOERT_TRY(moert_backend_get(NULL)->glu_forward(&full));
    return MOERT_OK;
}

moert_status moert_glu_backward(const moert_glu *glu) {
    moert_glu full;
    MOERT_TRY(check_glu(glu, true, &full));
    if (glu->rows == glu->first_row)
        return MOERT_OK;
    tell_glu(glu, 3, 2, 2);
    MOERT_TRY(moert_backend_get(NULL)->glu_backward(&full));
    return MOERT_OK;
}

/* For a profile, beside what the product tells: h and the weights, and v only if it is kept. */
static void tell_fused(const moert_gemm_glu *fused) {
    const double rows = (double)(fused->glu.rows - fused->glu.first_row),
                 width = (double)fused->glu.width;
    const double h = width * (double)(moert_number_bits(fused->glu.type) / 8);
    moert_profile_work(moert_buffer_device(fused->glu.h), "gemm", 0.0,
                       rows * (h + sizeof(float) * (1.0 - (fused->drop_v ? 2.0 * width : 0.0))));
}

moert_status moert_gemm_glu_forward(const moert_gemm_glu *fused) {
    moert_gemm_glu full = *fused;
    if (fused->gemm.n % 2 != 0)
        return MOERT_FAIL(ERROR_USAGE, "a GLU of an odd number of columns, %zu", fused->gemm.n);
    const moert_part part = moert_part_of(&fused->gemm);
    full.glu.first_row = part.first_row;
    full.glu.rows = part.end_row;
    full.glu.width = fused->gemm.n / 2;
    full.glu.v = fused->gemm.y;
    MOERT_TRY(check_glu(&full.glu, false, &full.glu));
    MOERT_TRY(
        moert_check_forward(&fused->gemm, moert_packed_for_glu(&fused->glu.form), &full.gemm));
    if (full.gemm.ldy != full.gemm.n)
        return MOERT_FAIL(ERROR_USAGE,
                          "a GLU behind a GEMM needs dense rows of %zu columns, not %zu",
                          full.gemm.n, full.gemm.ldy);
    if (full.glu.type != MOERT_NUMBER_F32 && full.gemm.type == MOERT_NUMBER_F32)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "a product of f32 factors gives no h of bf16");
    if (full.gemm.result != MOERT_NUMBER_F32)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "a GLU takes float32 results, not type %d",
                          (int)full.gemm.result);
    if (full.gemm.groups.count == 0 || full.glu.rows == full.glu.first_row)
        return MOERT_OK;
    tell_fused(&full);
    MOERT_TRY(
        moert_backend_get(moert_buffer_device(fused->gemm.groups.ends))->gemm_glu_forward(&full));
    return MOERT_OK;
}
