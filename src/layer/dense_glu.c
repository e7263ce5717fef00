/* The GLU of a shared expert or of a dense layer. */
#include "layer/dense_glu.h"

#include "base/memory.h"
#include "layer/dense_rounding.h"

static moert_glu_sizes sizes_of(const moert_dense_glu *glu) {
    return (moert_glu_sizes){.device = glu->mesh->device,
                             .type = glu->type,
                             .rounds = glu->recipe != NULL,
                             .tokens = glu->batch.tokens,
                             .sequences = glu->batch.sequences,
                             .hidden = glu->hidden,
                             .width = glu->width};
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

/* ---- operands ---- */

/* The rounding of the operands of GEMMs by weight `index`, 0 or 1. */
static moert_dense_rounding rounding_of(const moert_dense_glu *glu, size_t index) {
    return (moert_dense_rounding){
        .mesh = glu->mesh,
        .batch = &glu->batch,
        .type = glu->type,
        .recipe = glu->recipe,
        .seed = moert_dense_seed(&glu->batch, "shared expert", index),
    };
}

/* Makes an operand of a GEMM from rows of dtype `from`. */
static moert_status take(const moert_dense_glu *glu, size_t index, moert_gemm *gemm, bool y,
                         moert_matrix from) {
    const moert_dense_rounding how = rounding_of(glu, index);
    *(y ? &gemm->y : &gemm->x) = from;
    return moert_dense_round(&how, gemm, y, y ? MOERT_SCRATCH_ROUNDED_Y : MOERT_SCRATCH_ROUNDED_X);
}

static moert_panels_use use_of(size_t index) {
    return index == 0 ? MOERT_PANELS_GATED : MOERT_PANELS_FORWARD;
}

/* Runs a forward or dgrad by weight `index`. */
static moert_status run(const moert_dense_glu *glu, size_t index, const moert_gemm *gemm) {
    const moert_dense_rounding how = rounding_of(glu, index);
    return moert_dense_gemm(&how, glu->block, glu->first + index, use_of(index), gemm);
}

/* h, which is an operand before a recipe rounds it. */
static moert_matrix hidden(const moert_dense_glu *glu) {
    return (moert_matrix){.buffer = glu->h, .type = glu->type};
}

static moert_matrix floats(const moert_buffer *rows) {
    return (moert_matrix){.buffer = (moert_buffer *)rows, .type = MOERT_DTYPE_F32};
}

/* ---- scratch ---- */

/* Floats of dh, and of dv if it does not replace v. With a recipe dv replaces v, since the rounded
 * dv is in scratch. */
static size_t dh_floats(const moert_glu_sizes *s) {
    return moert_operand_floats(moert_glu_between(s), s->tokens * s->width);
}
static size_t dv_floats(const moert_glu_sizes *s) {
    return s->type != moert_glu_between(s) || s->rounds
               ? moert_operand_floats(s->type, s->tokens * 2 * s->width)
               : 0;
}

void moert_dense_glu_scratch(const moert_glu_sizes *s, size_t floats[MOERT_SCRATCHES]) {
    const size_t operand = moert_operand_copy_floats(s->type, s->tokens * s->hidden),
                 h = s->rounds ? moert_operand_floats(s->type, s->tokens * s->width) : 0;
    if (s->width == 0)
        return;
    moert_scratch_need(floats, MOERT_SCRATCH_HIDDEN, dh_floats(s));
    moert_scratch_need(floats, MOERT_SCRATCH_ROUNDED_X, moert_max(operand, h));
    moert_scratch_need(floats, MOERT_SCRATCH_ROUNDED_Y, moert_max(operand, dv_floats(s)));
    moert_scratch_need(
        floats, MOERT_SCRATCH_PARTIAL,
        moert_block_partial_floats(s->device, s->sequences, 2 * s->width, s->hidden));
    moert_scratch_need(floats, MOERT_SCRATCH_PARTIAL,
                       moert_block_partial_floats(s->device, s->sequences, s->hidden, s->width));
    if (!s->rounds || s->tokens == 0)
        return;
    moert_dense_weight_scratch(s->device, 2 * s->width, s->hidden, use_of(0), floats);
    moert_dense_weight_scratch(s->device, s->hidden, s->width, use_of(1), floats);
}

/* ---- forward and backward ---- */

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
    MOERT_TRY(take(glu, 0, &gemm, false, floats(glu->x)));
    return run(glu, 0, &gemm);
}

moert_status moert_dense_glu_forward(const moert_dense_glu *glu, moert_buffer *y) {
    moert_gemm gemm = gemm_of(glu, MOERT_GEMM_FORWARD, glu->hidden, glu->width);
    MOERT_TRY(moert_dense_glu_activate(glu));
    MOERT_TRY(take(glu, 1, &gemm, false, hidden(glu)));
    gemm.y.buffer = y;
    return run(glu, 1, &gemm);
}

/* *dv = the gradient of v: v itself, or a scratch buffer for operands of another dtype. */
static moert_status activation_backward(const moert_dense_glu *glu, const moert_buffer *dh,
                                        moert_matrix *dv) {
    const moert_glu_sizes sizes = sizes_of(glu);
    const moert_dtype from = moert_glu_between(&sizes);
    *dv = (moert_matrix){.buffer = glu->v, .type = glu->recipe != NULL ? from : glu->type};
    if (dv->type != from)
        MOERT_TRY(
            moert_mesh_scratch(glu->mesh, MOERT_SCRATCH_ROUNDED_Y, dv_floats(&sizes), &dv->buffer));
    return moert_glu_backward(&(moert_glu){.form = form_of(glu),
                                           .rows = sizes.tokens,
                                           .width = glu->width,
                                           .v = glu->v,
                                           .prob = glu->prob,
                                           .from = from,
                                           .type = dv->type,
                                           .dh = dh,
                                           .dv = dv->buffer,
                                           .dprob = glu->dprob});
}

/* Collects the gradient of weight `index`, [n,k], from x[T,k] and y[T,n]. Then *dgrad = the dgrad
 * with y as its operand. */
static moert_status weight_backward(const moert_dense_glu *glu, size_t index, moert_matrix x,
                                    moert_matrix y, moert_gemm *dgrad) {
    const size_t n = index == 0 ? 2 * glu->width : glu->hidden,
                 k = index == 0 ? glu->hidden : glu->width;
    moert_gemm wgrad = gemm_of(glu, MOERT_GEMM_WGRAD, n, k);
    MOERT_TRY(take(glu, index, &wgrad, false, x));
    MOERT_TRY(take(glu, index, &wgrad, true, y));
    MOERT_TRY(moert_block_dense_gradient(glu->block, glu->first + index, &glu->batch, &wgrad,
                                         &glu->mesh->scratch[MOERT_SCRATCH_PARTIAL]));
    *dgrad = gemm_of(glu, MOERT_GEMM_DGRAD, n, k);
    if (glu->recipe != NULL)
        return take(glu, index, dgrad, true, y);
    dgrad->y = wgrad.y;
    return MOERT_OK;
}

moert_status moert_dense_glu_backward(const moert_dense_glu *glu, const moert_buffer *dy,
                                      moert_buffer *dx, bool accumulate) {
    const moert_glu_sizes sizes = sizes_of(glu);
    moert_gemm out, in;
    moert_buffer *dh;
    moert_matrix dv;
    MOERT_TRY(moert_mesh_scratch(glu->mesh, MOERT_SCRATCH_HIDDEN, dh_floats(&sizes), &dh));
    MOERT_TRY(weight_backward(glu, 1, hidden(glu), floats(dy), &out));
    out.x = (moert_matrix){.buffer = dh, .type = moert_glu_between(&sizes)};
    MOERT_TRY(run(glu, 1, &out));
    MOERT_TRY(activation_backward(glu, dh, &dv));
    MOERT_TRY(weight_backward(glu, 0, floats(glu->x), dv, &in));
    in.x.buffer = dx;
    in.epilogue.addend = moert_accumulate(accumulate);
    return run(glu, 0, &in);
}
