/*
 * The nvidia backend of the grouped operations: products of bf16 factors on tensor cores, where
 * rows are aligned to 16 bytes; all else is the portable backend's. A weight is a factor by
 * its packing only: a bf16 copy [G,N,K], which serves all uses.
 */
#include "base/memory.h"
#include "gemm/backend.h"
#include "gemm/nvidia/tensor_cores.h"
#include "quant/backend.h"

enum { GRAIN = 8 }; /* bf16 numbers of 16 bytes, the grain of copies to local memory */

/* ---- weights ---- */

static size_t plan(const moert_device *device, moert_packed *packed) {
    const moert_packed_shape *shape = &packed->shape;
    (void)device;
    if (shape->type != MOERT_NUMBER_BF16 || (shape->n | shape->k) % GRAIN != 0)
        return 0;
    return shape->groups * shape->n * shape->k * sizeof(uint16_t);
}

/* The values of codes, whose groups of rows are equal. */
static moert_status decode(const moert_packed *packed, const moert_coded *coded) {
    const moert_packed_shape *shape = &packed->shape;
    moert_device *device = moert_buffer_device(packed->panels);
    moert_buffer *ends = NULL;
    moert_status status;
    if (coded->flipped)
        return MOERT_FAIL(ERROR_UNSUPPORTED, "a transposed weight is not packed for tensor cores");
    MOERT_TRY(moert_buffer_create(device, shape->groups * sizeof(uint32_t), &ends));
    for (size_t g = 0; g < shape->groups; g++) {
        const uint32_t end = (uint32_t)((g + 1) * shape->n);
        MOERT_TRY_OR(destroy, moert_buffer_write(ends, g * sizeof end, &end, sizeof end));
    }
    const moert_quantize op = {
        .size = sizeof op,
        .how = {.format = coded->format, .axis = coded->axis, .group_scales = true},
        .groups = {ends, shape->groups, shape->groups * shape->n},
        .columns = shape->k,
        .x = packed->panels,
        .x_type = MOERT_NUMBER_BF16,
        .q = (moert_buffer *)coded->q,
        .scale = (moert_buffer *)coded->scale,
        .global = (moert_buffer *)coded->global,
        .blocks = shape->groups * moert_ceil_div(shape->n, moert_format_block(coded->format)),
    };
    status = moert_portable_dequantize(&op);
destroy:
    moert_buffer_destroy(ends);
    return status;
}

static moert_status fill(const moert_packed *packed, const moert_buffer *weight,
                         const moert_coded *coded) {
    const moert_packed_shape *shape = &packed->shape;
    if (coded != NULL)
        return decode(packed, coded);
    return moert_portable_cast(&(moert_cast){.size = sizeof(moert_cast),
                                             .from = MOERT_NUMBER_F32,
                                             .to = MOERT_NUMBER_BF16,
                                             .n = shape->groups * shape->n * shape->k,
                                             .source = weight,
                                             .target = packed->panels});
}

/* Whether the kernel can do it; `groups` of ends are in use. */
static bool suits(const moert_gemm *gemm, size_t groups) {
    return gemm->type == MOERT_NUMBER_BF16 && groups <= MOERT_NVIDIA_MOST_GROUPS &&
           (gemm->n | gemm->k | gemm->ldx | gemm->ldy | gemm->y_column) % GRAIN == 0;
}

/* By a weight that is packed. */
static bool suits_packed(const moert_gemm *gemm) {
    return suits(gemm, gemm->shared_weight ? 1 : gemm->groups.count);
}

static bool scatters(const moert_device *device, const moert_gemm *gemm) {
    return moert_nvidia_uses_wgmma(device) && gemm->y_column == 0;
}

const moert_packing moert_nvidia_packing = {.plan = plan,
                                            .fill = fill,
                                            .pays_at = 1,
                                            .any_use = true,
                                            .in_order = true,
                                            .rounds = suits_packed,
                                            .scatters = scatters,
                                            .split_bytes = moert_nvidia_split_bytes};

/* ---- products ---- */

static bool suits_rows(const moert_gemm *gemm) {
    return gemm->groups.rows > 0 && gemm->packed != NULL && suits_packed(gemm);
}

/* For the portable backend, which knows other packings. */
static moert_gemm unpacked(const moert_gemm *gemm) {
    moert_gemm plain = *gemm;
    plain.packed = NULL;
    return plain;
}

/* The product without what is a kind's own. */
static moert_nvidia_product product_of(const moert_gemm *gemm, moert_op_kind kind) {
    const bool forward = kind == MOERT_OP_GEMM_FORWARD || kind == MOERT_OP_GLU;
    const bool dgrad = kind == MOERT_OP_GEMM_DGRAD;
    return (moert_nvidia_product){
        .kind = kind,
        .groups = gemm->groups,
        .part = gemm->part,
        .shared = gemm->shared_weight,
        .n = gemm->n,
        .k = gemm->k,
        .x = {gemm->x, gemm->ldx, 0, dgrad ? gemm->result : MOERT_NUMBER_BF16},
        .y = {gemm->y, gemm->ldy, gemm->y_column, forward ? gemm->result : MOERT_NUMBER_BF16},
        .weight = forward || dgrad ? gemm->packed->panels : gemm->weight,
        .weight_type = MOERT_NUMBER_F32,
        .accumulate = gemm->accumulate && !forward,
        .bias = forward ? gemm->bias : NULL,
        .bias_type = MOERT_NUMBER_F32,
        .scatter = kind != MOERT_OP_GLU && (forward || dgrad) ? gemm->scatter : (moert_scatter){0},
    };
}

moert_status moert_nvidia_gemm_forward(const moert_gemm *gemm) {
    const moert_gemm plain = unpacked(gemm);
    if (moert_nvidia_splits(gemm, MOERT_OP_GEMM_FORWARD))
        return moert_nvidia_split(gemm, MOERT_OP_GEMM_FORWARD);
    if (!suits_rows(gemm))
        return moert_portable_gemm_forward(&plain);
    const moert_nvidia_product p = product_of(gemm, MOERT_OP_GEMM_FORWARD);
    return moert_nvidia_run(&p);
}

moert_status moert_nvidia_gemm_dgrad(const moert_gemm *gemm) {
    const moert_gemm plain = unpacked(gemm);
    if (moert_nvidia_splits(gemm, MOERT_OP_GEMM_DGRAD))
        return moert_nvidia_split(gemm, MOERT_OP_GEMM_DGRAD);
    if (!suits_rows(gemm))
        return moert_portable_gemm_dgrad(&plain);
    const moert_nvidia_product p = product_of(gemm, MOERT_OP_GEMM_DGRAD);
    return moert_nvidia_run(&p);
}

moert_status moert_nvidia_gemm_wgrad(const moert_gemm *gemm) {
    if (moert_nvidia_splits(gemm, MOERT_OP_GEMM_WGRAD))
        return moert_nvidia_split(gemm, MOERT_OP_GEMM_WGRAD);
    if (gemm->groups.rows == 0 || !suits(gemm, gemm->groups.count))
        return moert_portable_gemm_wgrad(gemm);
    const moert_nvidia_product p = product_of(gemm, MOERT_OP_GEMM_WGRAD);
    return moert_nvidia_run(&p);
}

moert_status moert_nvidia_gemm_glu_forward(const moert_gemm_glu *fused) {
    const moert_glu *glu = &fused->glu;
    moert_gemm_glu plain = *fused;
    plain.gemm.packed = NULL;
    if (!suits_rows(&fused->gemm) || glu->width % GRAIN != 0)
        return moert_portable_gemm_glu_forward(&plain);
    moert_nvidia_product p = product_of(&fused->gemm, MOERT_OP_GLU);
    if (!fused->drop_v)
        p.v = p.y;
    p.y = (moert_nvidia_rows){glu->h, glu->width, 0, glu->type};
    p.factor = glu->prob;
    p.factor_stride = glu->prob_stride;
    p.glu = glu->form;
    p.run = glu->form.interleaved ? 1 : glu->width;
    return moert_nvidia_run(&p);
}
