/* Checks GLUs, and runs a GLU that is not part of a GEMM on the backend in use. */
#include "gemm/glu.h"

#include "base/memory.h"
#include "base/dtype.h"
#include "device/profile/profile.h"
#include "gemm/backend.h"

/* Checks a dense matrix. */
static moert_status check(const char *name, const moert_buffer *buffer, const moert_glu *glu,
                          size_t width, moert_dtype type) {
    return moert_check_buffer(name, buffer, glu->rows, width, width, moert_dtype_bits(type) / 8);
}

static moert_status check_weights(const char *name, const moert_buffer *buffer,
                                  const moert_glu *glu) {
    return moert_check_buffer(name, buffer, glu->rows, 1, glu->prob_stride, sizeof(float));
}

static moert_status check_type(moert_dtype type) {
    if (type != MOERT_DTYPE_F32 && type != MOERT_DTYPE_BF16)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "a GLU takes and gives f32 or bf16, not type %d",
                          (int)type);
    return MOERT_OK;
}

moert_status moert_check_glu(const moert_glu *glu, bool backward, moert_glu *full) {
    *full = *glu;
    full->prob_stride = glu->prob_stride > 0 ? glu->prob_stride : 1;
    full->run = glu->form.interleaved ? 1 : glu->width;
    full->ldv = 2 * glu->width;
    full->ldh = backward ? 2 * glu->width : glu->width;
    int narrow;
    MOERT_TRY(moert_to_int(glu->rows, "rows of a GLU", &narrow));
    MOERT_TRY(moert_to_int(2 * glu->width, "columns of a GLU", &narrow));
    if (glu->first_row > glu->rows)
        return MOERT_FAIL(ERROR_USAGE,
                          "the first row of a GLU, %zu, is above the number of rows, %zu",
                          glu->first_row, glu->rows);
    MOERT_TRY(check_type(glu->from));
    MOERT_TRY(check_type(glu->type));
    if (glu->width == 0 || !(glu->form.limit > 0.0f))
        return MOERT_FAIL(
            ERROR_USAGE,
            "a GLU needs columns and a positive limit, not %zu columns and the limit %g",
            glu->width, (double)glu->form.limit);
    MOERT_TRY(check("v", glu->v, glu, 2 * glu->width, glu->from));
    if (glu->prob != NULL)
        MOERT_TRY(check_weights("prob", glu->prob, full));
    if (!backward)
        return check("h", glu->h, glu, glu->width, glu->type);
    MOERT_TRY(check("dh", glu->dh, glu, glu->width, glu->from));
    MOERT_TRY(check("dv", glu->dv, glu, 2 * glu->width, glu->type));
    return glu->dprob != NULL ? check_weights("dprob", glu->dprob, full) : MOERT_OK;
}

/* Reports bytes to the profile: per row, `reads` and `writes` values for each of the I columns, and
 * `weights` floats. */
static void report_work(const moert_glu *glu, size_t reads, size_t writes, size_t weights) {
    const size_t bits = reads * moert_dtype_bits(glu->from) + writes * moert_dtype_bits(glu->type);
    const size_t row = glu->width * bits / 8 + weights * sizeof(float);
    moert_profile_work(moert_buffer_device(glu->v), "gemm/glu", 0.0,
                       (double)((glu->rows - glu->first_row) * row));
}

static moert_status run(const moert_glu *glu, bool backward) {
    moert_glu full;
    MOERT_TRY(moert_check_glu(glu, backward, &full));
    if (glu->rows == glu->first_row)
        return MOERT_OK;
    report_work(glu, backward ? 3 : 2, backward ? 2 : 1, backward ? 2 : 1);
    return moert_backend_get(moert_buffer_device(glu->v))->glu(&full, backward);
}

moert_status moert_glu_forward(const moert_glu *glu) {
    return run(glu, false);
}

moert_status moert_glu_backward(const moert_glu *glu) {
    return run(glu, true);
}
