/* The GLU behind a product with conversions: kernels/op/glu.cl. */
#include "args/gemm.h"
#include "gemm/portable/general.h"

static moert_status run_forward(const moert_gemm *gemm, moert_device *device) {
    const moert_general *work = gemm->workspace->state;
    const moert_epilogue *e = &gemm->epilogue;
    const moert_glu *u = &gemm->glu;
    const size_t split = moert_general_split(device, gemm->n);
    const moert_grid grid = {moert_ceil_div(gemm->groups.rows, split), 1, 1};
    return MOERT_RUN(
        device, MOERT_PROGRAM(device, "op/glu", (ptrdiff_t)(u->width | gemm->ldy | u->ldh)),
        "op_glu", grid, MOERT_ARG(gemm->groups.ends), MOERT_ARG(work->acc), MOERT_ARG(e->alpha),
        MOERT_ARG(gemm->bias), MOERT_ARG(u->prob), MOERT_ARG(gemm->y), MOERT_ARG(u->h),
        MOERT_ARG(work->peak),
        MOERT_ARGS(moert_glu_args, .groups = (unsigned)gemm->groups.count,
                   .rows = (unsigned)gemm->groups.rows, .bias_type = (int)e->bias_type,
                   .c_type = (int)gemm->result, .c_stride = gemm->ldy, .d_type = (int)u->type,
                   .d_stride = u->ldh, .width = (int)u->width, .run = (int)u->run,
                   .linear_first = (int)u->linear_first, .limit = u->form.limit,
                   .slope = u->form.alpha, .offset = u->form.offset,
                   .activation = u->form.activation, .split = (unsigned)split));
}

static moert_status add_dbias(const moert_gemm *gemm, moert_device *device) {
    const moert_general *work = gemm->workspace->state;
    const size_t columns = 2 * gemm->glu.width;
    const moert_grid grid = {moert_ceil_div(columns, moert_share(device, 16, 128)),
                             gemm->groups.count, 1};
    if (gemm->glu.dbias == NULL)
        return MOERT_OK;
    return MOERT_RUN(device, MOERT_PROGRAM(device, "op/glu", columns), "op_dbias", grid,
                     MOERT_ARG(gemm->groups.ends), MOERT_ARG(work->wide),
                     MOERT_ARG(gemm->glu.dbias),
                     MOERT_ARGS(moert_glu_args, .rows = (unsigned)gemm->groups.rows,
                                .type = (int)gemm->epilogue.bias_type, .columns = (int)columns));
}

static moert_status run_backward(const moert_gemm *gemm, moert_device *device) {
    const moert_general *work = gemm->workspace->state;
    const moert_epilogue *e = &gemm->epilogue;
    const moert_glu *u = &gemm->glu;
    const size_t split = moert_general_split(device, 2 * u->width);
    const moert_grid grid = {moert_ceil_div(gemm->groups.rows, split), 1, 1};
    MOERT_TRY(MOERT_RUN(
        device, MOERT_PROGRAM(device, "op/glu", (ptrdiff_t)(u->width | u->ldv | u->ldh)), "op_dglu",
        grid, MOERT_ARG(gemm->groups.ends), MOERT_ARG(work->acc), MOERT_ARG(e->alpha),
        MOERT_ARG(e->beta), MOERT_ARG(e->acc_scale), MOERT_ARG(u->prob), MOERT_ARG(u->v),
        MOERT_ARG(u->dv), MOERT_ARG(work->wide), MOERT_ARG(work->peak), MOERT_ARG(u->dprob),
        MOERT_ARGS(moert_glu_args, .groups = (unsigned)gemm->groups.count,
                   .rows = (unsigned)gemm->groups.rows, .c_type = (int)u->from, .c_stride = u->ldv,
                   .d_type = (int)u->type, .d_stride = u->ldh, .width = (int)u->width,
                   .run = (int)u->run, .linear_first = (int)u->linear_first, .limit = u->form.limit,
                   .slope = u->form.alpha, .offset = u->form.offset,
                   .activation = u->form.activation, .split = (unsigned)split)));
    return add_dbias(gemm, device);
}

moert_status moert_general_glu(const moert_gemm *gemm) {
    moert_device *device = moert_buffer_device(gemm->groups.ends);
    return gemm->gated == MOERT_GATED ? run_forward(gemm, device) : run_backward(gemm, device);
}
