/* The GLU alone, as a public operation (moert/glu.h). */
#include "base/options.h"
#include "gemm/gemm.h"

static moert_status take(const moert_glu_rows *given, moert_glu *glu) {
    moert_glu_rows r;
    MOERT_TRY(MOERT_OPTIONS_TAKE(moert_glu_rows, MOERT_GLU_ROWS_INIT, &r, given));
    if (moert_activation_name(r.form.activation) == NULL)
        return MOERT_FAIL(ERROR_USAGE, "there is no activation %d for a GLU", r.form.activation);
    *glu = (moert_glu){.form = r.form,
                       .rows = r.rows,
                       .width = r.width,
                       .v = r.v,
                       .prob = r.prob,
                       .from = r.from,
                       .type = r.to,
                       .h = r.h,
                       .dh = r.dh,
                       .dv = r.dv,
                       .dprob = r.dprob};
    return MOERT_OK;
}

moert_status moert_glu_apply(const moert_glu_rows *rows) {
    moert_glu glu;
    MOERT_TRY(take(rows, &glu));
    MOERT_TRY(moert_glu_forward(&glu));
    return MOERT_OK;
}

moert_status moert_glu_differentiate(const moert_glu_rows *rows) {
    moert_glu glu;
    MOERT_TRY(take(rows, &glu));
    MOERT_TRY(moert_glu_backward(&glu));
    return MOERT_OK;
}
