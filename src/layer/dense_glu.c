/* The GLU of a shared expert or of a dense layer. */
#include "layer/dense_glu.h"

#include "base/memory.h"

/* The dtype of v and dh. */
static moert_dtype type_between(const moert_dense_glu *glu) {
    return moert_operand_between(glu->mesh->device, glu->type, 1, glu->hidden, glu->width);
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

size_t moert_dense_glu_v_floats(const moert_device *device, moert_dtype type, size_t tokens,
                                size_t hidden, size_t width) {
    return moert_operand_floats(moert_operand_between(device, type, 1, hidden, width),
                                tokens * 2 * width);
}

size_t moert_dense_glu_h_floats(moert_dtype type, size_t tokens, size_t width) {
    return moert_operand_floats(type, tokens * width);
}

moert_status moert_dense_glu_activate(const moert_dense_glu *glu, const moert_buffer *x,
                                      moert_buffer *v, moert_buffer *h) {
    moert_gemm gemm = gemm_of(glu, MOERT_GEMM_FORWARD, 2 * glu->width, glu->hidden);
    gemm.y = (moert_matrix){.buffer = v, .type = type_between(glu)};
    gemm.glu = (moert_glu){.gated = MOERT_GATED,
                           .drop_v = glu->drop_v,
                           .form = form_of(glu),
                           .prob = glu->prob,
                           .type = glu->type,
                           .h = h};
    MOERT_TRY(moert_operand_take(glu->mesh, glu->type, glu->batch.tokens * glu->hidden, x,
                                 MOERT_SCRATCH_ROUNDED_X, &gemm.x.buffer));
    return moert_block_gemm(glu->block, glu->first, &gemm);
}

moert_status moert_dense_glu_forward(const moert_dense_glu *glu, const moert_buffer *x,
                                     moert_buffer *v, moert_buffer *h, moert_buffer *y) {
    moert_gemm gemm = gemm_of(glu, MOERT_GEMM_FORWARD, glu->hidden, glu->width);
    MOERT_TRY(moert_dense_glu_activate(glu, x, v, h));
    gemm.x.buffer = h;
    gemm.y.buffer = y;
    return moert_block_gemm(glu->block, glu->first + 1, &gemm);
}

/* *dv = the gradient of v: v itself, or a scratch buffer for operands of another dtype. */
static moert_status differentiate_activation(const moert_dense_glu *glu, moert_buffer *v,
                                             const moert_buffer *dh, moert_buffer **dv) {
    const moert_dtype from = type_between(glu);
    const size_t tokens = glu->batch.tokens;
    *dv = v;
    if (glu->type != from)
        MOERT_TRY(moert_mesh_scratch(glu->mesh, MOERT_SCRATCH_ROUNDED_Y,
                                     moert_operand_floats(glu->type, tokens * 2 * glu->width), dv));
    return moert_glu_backward(&(moert_glu){.form = form_of(glu),
                                           .rows = tokens,
                                           .width = glu->width,
                                           .v = v,
                                           .prob = glu->prob,
                                           .from = from,
                                           .type = glu->type,
                                           .dh = dh,
                                           .dv = *dv,
                                           .dprob = glu->dprob});
}

moert_status moert_dense_glu_backward(const moert_dense_glu *glu, const moert_buffer *x,
                                      moert_buffer *v, moert_buffer *h, const moert_buffer *dy,
                                      moert_buffer *dx, bool accumulate) {
    moert_mesh *mesh = glu->mesh;
    moert_buffer **partial = &mesh->scratch[MOERT_SCRATCH_PARTIAL], *dh, *dv;
    const size_t tokens = glu->batch.tokens, n = tokens * glu->hidden;
    moert_gemm out = gemm_of(glu, MOERT_GEMM_DGRAD, glu->hidden, glu->width);
    moert_gemm in = gemm_of(glu, MOERT_GEMM_DGRAD, 2 * glu->width, glu->hidden);
    MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_HIDDEN,
                                 moert_operand_floats(type_between(glu), tokens * glu->width),
                                 &dh));
    out.x.buffer = h;
    MOERT_TRY(moert_operand_take(mesh, glu->type, n, dy, MOERT_SCRATCH_ROUNDED_Y, &out.y.buffer));
    MOERT_TRY(moert_block_dense_gradient(glu->block, glu->first + 1, &glu->batch, &out, partial));
    out.x = (moert_matrix){.buffer = dh, .type = type_between(glu)};
    MOERT_TRY(moert_block_gemm(glu->block, glu->first + 1, &out));
    MOERT_TRY(differentiate_activation(glu, v, dh, &dv));
    in.y.buffer = dv;
    MOERT_TRY(moert_operand_take(mesh, glu->type, n, x, MOERT_SCRATCH_ROUNDED_X, &in.x.buffer));
    MOERT_TRY(moert_block_dense_gradient(glu->block, glu->first, &glu->batch, &in, partial));
    in.x.buffer = dx;
    in.epilogue.addend = moert_accumulate(accumulate);
    return moert_block_gemm(glu->block, glu->first, &in);
}
