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

static moert_gemm gemm_of(const moert_dense_glu *glu, size_t n, size_t k) {
    const moert_batch *batch = &glu->batch;
    return (moert_gemm){.groups = {batch->ends, batch->sequences, batch->tokens},
                        .n = n,
                        .k = k,
                        .type = glu->type,
                        .shared_weight = true};
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
    moert_gemm gemm = gemm_of(glu, 2 * glu->width, glu->hidden);
    gemm.result = type_between(glu);
    gemm.y = v;
    gemm.gated = true;
    gemm.glu = (moert_glu){.form = form_of(glu), .prob = glu->prob, .type = glu->type, .h = h};
    gemm.drop_v = glu->drop_v;
    MOERT_TRY(moert_operand_take(glu->mesh, glu->type, glu->batch.tokens * glu->hidden, x,
                                 MOERT_SCRATCH_ROUNDED_X, &gemm.x));
    return moert_block_gemm(glu->block, glu->first, &gemm);
}

moert_status moert_dense_glu_forward(const moert_dense_glu *glu, const moert_buffer *x,
                                     moert_buffer *v, moert_buffer *h, moert_buffer *y) {
    moert_gemm gemm = gemm_of(glu, glu->hidden, glu->width);
    MOERT_TRY(moert_dense_glu_activate(glu, x, v, h));
    gemm.x = h;
    gemm.y = y;
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
    moert_gemm gemm = gemm_of(glu, glu->hidden, glu->width);
    MOERT_TRY(moert_mesh_scratch(mesh, MOERT_SCRATCH_HIDDEN,
                                 moert_operand_floats(type_between(glu), tokens * glu->width),
                                 &dh));
    gemm.kind = MOERT_GEMM_DGRAD;
    gemm.x = h;
    MOERT_TRY(moert_operand_take(mesh, glu->type, n, dy, MOERT_SCRATCH_ROUNDED_Y, &gemm.y));
    MOERT_TRY(moert_block_dense_gradient(glu->block, glu->first + 1, &glu->batch, &gemm, partial));
    gemm.x = dh;
    gemm.result = type_between(glu);
    MOERT_TRY(moert_block_gemm(glu->block, glu->first + 1, &gemm));
    gemm.result = MOERT_DTYPE_F32;
    MOERT_TRY(differentiate_activation(glu, v, dh, &dv));
    gemm.n = 2 * glu->width;
    gemm.k = glu->hidden;
    gemm.y = dv;
    MOERT_TRY(moert_operand_take(mesh, glu->type, n, x, MOERT_SCRATCH_ROUNDED_X, &gemm.x));
    MOERT_TRY(moert_block_dense_gradient(glu->block, glu->first, &glu->batch, &gemm, partial));
    gemm.x = dx;
    gemm.accumulate = accumulate;
    return moert_block_gemm(glu->block, glu->first, &gemm);
}
