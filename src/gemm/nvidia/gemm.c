/*
 * The nvidia backend: products of bf16 factors on tensor cores, where rows are aligned to 16 bytes.
 * A weight is a factor by its packing only: a bf16 copy [G,N,K], which serves all uses.
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

static const moert_packing packing = {
    .plan = plan, .fill = fill, .pays_at = 1, .any_use = true, .in_order = true};

/* ---- products ---- */

static bool has_tensor_cores(const moert_device *device) {
    return device != NULL && moert_device_describe(device)->nvidia >= 80;
}

static const char *supports(const moert_device *device, const moert_gemm *gemm) {
    if (!has_tensor_cores(device))
        return MOERT_NVIDIA_TAKES;
    if (gemm == NULL || moert_nvidia_splits(device, gemm))
        return NULL;
    const bool wgrad = gemm->kind == MOERT_GEMM_WGRAD;
    const size_t groups = gemm->shared_weight ? 1 : gemm->groups.count;
    const struct {
        bool taken;
        const char *what;
    } conditions[] = {
        {gemm->kind != MOERT_GEMM_BIAS_GRAD, "forward, dgrad and wgrad"},
        {gemm->type == MOERT_NUMBER_BF16, "bf16 factors"},
        {wgrad || gemm->packed != NULL, "packed weights"},
        {gemm->groups.rows > 0, "at least one row"},
        {groups <= MOERT_NVIDIA_MOST_GROUPS, "at most 448 groups"},
        {(gemm->n | gemm->k | gemm->ldx | gemm->ldy | gemm->y_column) % GRAIN == 0,
         "n, k, strides and columns that are multiples of 8"},
        {!gemm->gated || gemm->n % (2 * GRAIN) == 0, "n of a glu that is a multiple of 16"},
        {gemm->result == MOERT_NUMBER_F32 || !gemm->accumulate, "f32 results to add to"},
        {gemm->scatter.runs == 0 || (moert_nvidia_uses_wgmma(device) && gemm->y_column == 0 &&
                                     !gemm->gated && gemm->result == MOERT_NUMBER_BF16),
         "lines of bf16 to put anywhere on GPUs of compute capability 9.0"},
    };
    for (size_t i = 0; i < sizeof conditions / sizeof conditions[0]; i++)
        if (!conditions[i].taken)
            return conditions[i].what;
    return NULL;
}

static moert_status run(const moert_gemm *gemm) {
    static const moert_op_kind kinds[] = {[MOERT_GEMM_FORWARD] = MOERT_OP_GEMM_FORWARD,
                                          [MOERT_GEMM_DGRAD] = MOERT_OP_GEMM_DGRAD,
                                          [MOERT_GEMM_WGRAD] = MOERT_OP_GEMM_WGRAD};
    const moert_op_kind kind = gemm->gated ? MOERT_OP_GLU : kinds[gemm->kind];
    const bool forward = gemm->kind == MOERT_GEMM_FORWARD, dgrad = gemm->kind == MOERT_GEMM_DGRAD;
    const moert_glu *glu = &gemm->glu;
    if (moert_nvidia_splits(moert_buffer_device(gemm->groups.ends), gemm))
        return moert_nvidia_split(gemm);
    moert_nvidia_product p = {
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
        .accumulate = gemm->accumulate,
        .bias = forward ? gemm->bias : NULL,
        .bias_type = MOERT_NUMBER_F32,
        .scatter = gemm->scatter,
    };
    if (gemm->gated) {
        if (!gemm->drop_v)
            p.v = p.y;
        p.y = (moert_nvidia_rows){glu->h, glu->width, 0, glu->type};
        p.factor = glu->prob;
        p.factor_stride = glu->prob_stride;
        p.glu = glu->form;
        p.run = glu->form.interleaved ? 1 : glu->width;
    }
    return moert_nvidia_run(&p);
}

static moert_status glu(const moert_glu *what, bool backward) {
    return moert_backend_portable.glu(what, backward);
}

const moert_backend moert_backend_nvidia = {.name = "nvidia",
                                            .supports = supports,
                                            .prepack = &packing,
                                            .run = run,
                                            .glu = glu,
                                            .split_bytes = moert_nvidia_split_bytes};
