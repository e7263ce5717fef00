/* The GLU behind a product with conversions: kernels/op/glu.cl. */
#include "gemm/portable/general.h"

static moert_status run_forward(const moert_gemm *gemm, moert_device *device) {
    const moert_general *work = gemm->workspace->state;
    const moert_epilogue *e = &gemm->epilogue;
    const moert_glu *u = &gemm->glu;
    const size_t split = moert_general_split(device, gemm->n);
    const moert_grid grid = {moert_ceil_div(gemm->groups.rows, split), 1, 1};
    return MOERT_RUN(
        device, MOERT_PROGRAM(device, "op/glu", (ptrdiff_t)(u->width | gemm->ldy | u->ldh)),
        "op_glu", grid, MOERT_ARG(gemm->groups.ends), MOERT_ARG((unsigned)gemm->groups.count),
        MOERT_ARG((unsigned)gemm->groups.rows), MOERT_ARG(work->acc), MOERT_ARG(e->alpha),
        MOERT_ARG(gemm->bias), MOERT_ARG((int)e->bias_type), MOERT_ARG(u->prob), MOERT_ARG(gemm->y),
        MOERT_ARG((int)gemm->result), MOERT_ARG(gemm->ldy), MOERT_ARG(u->h),
        MOERT_ARG((int)u->type), MOERT_ARG(u->ldh), MOERT_ARG(work->peak), MOERT_ARG((int)u->width),
        MOERT_ARG((int)u->run), MOERT_ARG((int)u->linear_first), MOERT_ARG(u->form.limit),
        MOERT_ARG(u->form.alpha), MOERT_ARG(u->form.offset), MOERT_ARG((unsigned)split));
}

static moert_status add_dbias(const moert_gemm *gemm, moert_device *device) {
    const moert_general *work = gemm->workspace->state;
    const size_t columns = 2 * gemm->glu.width;
    const moert_grid grid = {moert_ceil_div(columns, moert_share(device, 16, 128)),
                             gemm->groups.count, 1};
    if (gemm->glu.dbias == NULL)
        return MOERT_OK;
    return MOERT_RUN(device, MOERT_PROGRAM(device, "op/glu", columns), "op_dbias", grid,
                     MOERT_ARG(gemm->groups.ends), MOERT_ARG((unsigned)gemm->groups.rows),
                     MOERT_ARG(work->wide), MOERT_ARG(gemm->glu.dbias),
                     MOERT_ARG((int)gemm->epilogue.bias_type), MOERT_ARG((int)columns));
}

static moert_status run_backward(const moert_gemm *gemm, moert_device *device) {
    const moert_general *work = gemm->workspace->state;
    const moert_epilogue *e = &gemm->epilogue;
    const moert_glu *u = &gemm->glu;
    const size_t split = moert_general_split(device, 2 * u->width);
    const moert_grid grid = {moert_ceil_div(gemm->groups.rows, split), 1, 1};
    MOERT_TRY(MOERT_RUN(
        device, MOERT_PROGRAM(device, "op/glu", (ptrdiff_t)(u->width | u->ldv | u->ldh)), "op_dglu",
        grid, MOERT_ARG(gemm->groups.ends), MOERT_ARG((unsigned)gemm->groups.count),
        MOERT_ARG((unsigned)gemm->groups.rows), MOERT_ARG(work->acc), MOERT_ARG(e->alpha),
        MOERT_ARG(e->beta), MOERT_ARG(e->acc_scale), MOERT_ARG(u->prob), MOERT_ARG(u->v),
        MOERT_ARG((int)u->from), MOERT_ARG(u->ldv), MOERT_ARG(u->dv), MOERT_ARG((int)u->type),
        MOERT_ARG(u->ldh), MOERT_ARG(work->wide), MOERT_ARG(work->peak), MOERT_ARG(u->dprob),
        MOERT_ARG((int)u->width), MOERT_ARG((int)u->run), MOERT_ARG((int)u->linear_first),
        MOERT_ARG(u->form.limit), MOERT_ARG(u->form.alpha), MOERT_ARG(u->form.offset),
        MOERT_ARG((unsigned)split)));
    return add_dbias(gemm, device);
}

moert_status moert_general_glu(const moert_gemm *gemm) {
    moert_device *device = moert_buffer_device(gemm->groups.ends);
    return gemm->gated == MOERT_GATED ? run_forward(gemm, device) : run_backward(gemm, device);
}
