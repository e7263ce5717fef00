/* The GLU of a shared expert or of a dense layer. */
#include "layer/dense_glu.h"

#include "base/memory.h"

static moert_glu_sizes sizes_of(const moert_dense_glu *glu) {
    return (moert_glu_sizes){glu->mesh->device,    glu->type,   glu->batch.tokens,
                             glu->batch.sequences, glu->hidden, glu->width};
}

static moert_glu_form form_of(const moert_dense_glu *glu) {
    moert_glu_form form = glu->form;
    form.interleaved = false;
    return form;
}

static moert_gemm gemm_of(const moert_dense_glu *glu, moert_gemm_kind kind, size_t n, size_t k) {
    const moert_batch *batch = &glu->batch;
    moert_gemm gemm = {
        .groups = {batch->ends, batch->sequences, batch->tokens, .shared = true}, .n = n, .k = k};
    moert_gemm_set(&gemm, kind, glu->type);
    return gemm;
}

/* Floats of dh, and of dv if it does not replace v. */
static size_t dh_floats(const moert_glu_sizes *s) {
    return moert_operand_floats(moert_glu_between(s), s->tokens * s->width);
}
static size_t dv_floats(const moert_glu_sizes *s) {
    return s->type != moert_glu_between(s) ? moert_operand_floats(s->type, s->tokens * 2 * s->width)
                                           : 0;
}

void moert_dense_glu_scratch(const moert_glu_sizes *s, size_t floats[MOERT_SCRATCHES]) {
    const size_t operand = moert_operand_copy_floats(s->type, s->tokens * s->hidden);
    if (s->width == 0)
        return;
    moert_scratch_need(floats, MOERT_SCRATCH_HIDDEN, dh_floats(s));
    moert_scratch_need(floats, MOERT_SCRATCH_ROUNDED_X, operand);
    moert_scratch_need(floats, MOERT_SCRATCH_ROUNDED_Y, moert_max(operand, dv_floats(s)));
    moert_scratch_need(
        floats, MOERT_SCRATCH_PARTIAL,
        moert_block_partial_floats(s->device, s->sequences, 2 * s->width, s->hidden));
    moert_scratch_need(floats, MOERT_SCRATCH_PARTIAL,
                       moert_block_partial_floats(s->device, s->sequences, s->hidden, s->width));
}

moert_status moert_dense_glu_activate(const moert_dense_glu *glu) {
    const moert_glu_sizes sizes = sizes_of(glu);
    moert_gemm gemm = gemm_of(glu, MOERT_GEMM_FORWARD, 2 * glu->width, glu->hidden);
    gemm.y = (moert_matrix){.buffer = glu->v, .type = moert_glu_between(&sizes)};
    gemm.glu = (moert_glu){.gated = MOERT_GATED,
                           .drop_v = glu->drop_v,
                           .form = form_of(glu),
                           .prob = glu->prob,
                           .type = glu->type,
                           .h = glu->h};
    MOERT_TRY(moert_operand_take(glu->mesh, glu->type, glu->batch.tokens * glu->hidden, glu->x,
                                 MOERT_SCRATCH_ROUNDED_X, &gemm.x.buffer));
    return moert_block_gemm(glu->block, glu->first, &gemm);
}

moert_status moert_dense_glu_forward(const moert_dense_glu *glu, moert_buffer *y) {
    moert_gemm gemm = gemm_of(glu, MOERT_GEMM_FORWARD, glu->hidden, glu->width);
    MOERT_TRY(moert_dense_glu_activate(glu));
    gemm.x.buffer = glu->h;
    gemm.y.buffer = y;
    return moert_block_gemm(glu->block, glu->first + 1, &gemm);
}

/* *dv = the gradient of v: v itself, or a scratch buffer for operands of another dtype. */
static moert_status activation_backward(const moert_dense_glu *glu, const moert_buffer *dh,
                                        moert_buffer **dv) {
    const moert_glu_sizes sizes = sizes_of(glu);
    const moert_dtype from = moert_glu_between(&sizes);
    *dv = glu->v;
    if (glu->type != from)
        MOERT_TRY(moert_mesh_scratch(glu->mesh, MOERT_SCRATCH_ROUNDED_Y, dv_floats(&sizes), dv));
    return moert_glu_backward(&(moert_glu){.form = form_of(glu),
                                           .rows = sizes.tokens,
                                           .width = glu->width,
                                           .v = glu->v,
                                           .prob = glu->prob,
                                           .from = from,
                                           .type = glu->type,
                                           .dh = dh,
                                           .dv = *dv,
                                           .dprob = glu->dprob});
}

moert_status moert_dense_glu_backward(const moert_dense_glu *glu, const moert_buffer *dy,
                                      moert_buffer *dx, bool accumulate) {
    moert_mesh *mesh = glu->mesh;
    moert_buffer **partial = &mesh->scratch[MOERT_SCRATCH_PARTIAL], *dh, *dv;
    const moert_glu_sizes sizes = sizes_of(glu);
    const size_t n = sizes.tokens * glu->hidden;
    moert_gemm out = gemm_of(glu, MOERT_GEMM_DGRAD, glu->hidden, glu->width);
    moert_gemm in = gemm_of(glu, MOERT_GEMM_DGRAD, 2 * glu->width, glu->hidden);
    MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_HIDDEN, dh_floats(&sizes), &dh));
    out.x.buffer = glu->h;
    MOERT_TRY(moert_operand_take(mesh, glu->type, n, dy, MOERT_SCRATCH_ROUNDED_Y, &out.y.buffer));
    MOERT_TRY(moert_block_dense_gradient(glu->block, glu->first + 1, &glu->batch, &out, partial));
    out.x = (moert_matrix){.buffer = dh, .type = moert_glu_between(&sizes)};
    MOERT_TRY(moert_block_gemm(glu->block, glu->first + 1, &out));
    MOERT_TRY(activation_backward(glu, dh, &dv));
    in.y.buffer = dv;
    MOERT_TRY(
        moert_operand_take(mesh, glu->type, n, glu->x, MOERT_SCRATCH_ROUNDED_X, &in.x.buffer));
    MOERT_TRY(moert_block_dense_gradient(glu->block, glu->first, &glu->batch, &in, partial));
    in.x.buffer = dx;
    in.epilogue.addend = moert_accumulate(accumulate);
    return moert_block_gemm(glu->block, glu->first, &in);
}
