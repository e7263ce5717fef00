/*
 * The nvidia backend: GEMMs of 16-bit and FP8 operands on tensor cores, with the epilogue in the
 * same kernel, if rows are aligned to 16 bytes. The GEMM kernel decodes operands in MXFP8, MXFP4
 * and NVFP4 to bf16 (kernels/gemm/nvidia/ahead.h), or the caller dequantizes them. To multiply bf16
 * rows, a float32 weight must be prepacked as a bf16 copy [G,N,K], which serves all uses.
 */
#include <stdlib.h>

#include "base/memory.h"
#include "base/dtype.h"
#include "device/buffer.h"
#include "device/device.h"
#include "device/nvidia/tensor_map.h"
#include "gemm/backend.h"
#include "gemm/nvidia/tensor_cores.h"
#include "quant/backend.h"
#include "quant/decode.h"

enum { GRAIN = 8 }; /* bf16 values in 16 bytes, the unit of copies to local memory */

/* ---- weights ---- */

static size_t plan(const moert_device *device, const moert_choices *choices, moert_panels *panels) {
    (void)choices;
    const moert_panels_shape *shape = &panels->shape;
    (void)device;
    if (shape->type != MOERT_DTYPE_BF16 || (shape->n | shape->k) % GRAIN != 0)
        return 0;
    return shape->groups * shape->n * shape->k * sizeof(uint16_t);
}

static moert_status fill(moert_panels *panels, const moert_buffer *weight, moert_dtype type) {
    const moert_panels_shape *shape = &panels->shape;
    const size_t n = shape->groups * shape->n * shape->k;
    if (type == MOERT_DTYPE_BF16)
        return moert_buffer_copy(weight, 0, panels->buffer, 0, n * sizeof(uint16_t));
    return moert_portable_cast(&(moert_cast){.size = sizeof(moert_cast),
                                             .from = MOERT_DTYPE_F32,
                                             .to = MOERT_DTYPE_BF16,
                                             .n = n,
                                             .source = weight,
                                             .target = panels->buffer});
}

static const moert_prepacker prepacker = {
    .plan = plan, .fill = fill, .pays_at = 1, .any_use = true, .in_order = true};

/* ---- GEMMs ---- */

/* Whether results may have this type. */
static bool is_result(moert_dtype type) {
    return type == MOERT_DTYPE_F32 || type == MOERT_DTYPE_BF16 || type == MOERT_DTYPE_F16;
}

/* Whether kernels/gemm/nvidia/ahead.h can decode an operand. The operand's blocks must lie along
 * the reduction, which runs over rows if `down`, else over columns. Columns must be a multiple of
 * four blocks; a weight's rows must be a multiple of a block. */
static bool is_decoded_ahead(const moert_gemm *gemm, const moert_quantized *operand, size_t columns,
                             bool down) {
    if (operand == NULL)
        return true;
    const size_t block = moert_format_block(operand->format);
    if (operand->transposed || (operand->axis == MOERT_AXIS_COLUMN) != down)
        return false;
    /* row_multiple > 1: blocks of a group whose rows are not such a multiple would have no room */
    return !down                               ? columns % (4 * block) == 0
           : operand == gemm->weight.quantized ? gemm->n % block == 0
                                               : gemm->more->row_multiple <= 1;
}

static bool are_decoded_ahead(const moert_device *device, const moert_gemm *gemm) {
    const bool wgrad = gemm->kind == MOERT_GEMM_WGRAD, dgrad = gemm->kind == MOERT_GEMM_DGRAD;
    return !moert_nvidia_is_quantized(gemm) ||
           (moert_nvidia_uses_wgmma(device) &&
            is_decoded_ahead(gemm, gemm->x.quantized, gemm->k, wgrad) &&
            is_decoded_ahead(gemm, gemm->y.quantized, gemm->n, wgrad) &&
            is_decoded_ahead(gemm, gemm->weight.quantized, gemm->k, dgrad));
}

static bool has_values(const moert_quantized *operand) {
    return operand == NULL || operand->format < MOERT_DECODED_FORMATS;
}

static const char *supports(const moert_device *device, const moert_gemm *gemm) {
    if (device == NULL || moert_device_describe(device)->nvidia < 80)
        return MOERT_NVIDIA_REQUIRES;
    if (gemm == NULL)
        return NULL;
    if (moert_nvidia_splits(device, gemm))
        return NULL;
    if (gemm->kind == MOERT_GEMM_BIAS_GRAD || gemm->glu.gated == MOERT_GATED_BACKWARD)
        return "gemm_forward, gemm_dgrad, gemm_wgrad and glu";
    if (moert_nvidia_is_part(gemm) && moert_nvidia_is_quantized(gemm))
        return "all groups of quantized operands";
    if (moert_nvidia_is_fp8(gemm))
        return moert_nvidia_fp8_refusal(device, gemm);
    const bool wgrad = gemm->kind == MOERT_GEMM_WGRAD, ungated = !gemm->glu.gated;
    const moert_dtype type = moert_gemm_type(gemm), result = moert_nvidia_result_operand(gemm).type;
    const moert_matrix a = moert_nvidia_first_operand(gemm), b = moert_nvidia_second_operand(gemm);
    /* without a workspace a float32 weight is prepacked */
    const bool wide = gemm->more->workspace != NULL && (a.type != type || b.type != type);
    const moert_gemm_more *e = gemm->more;
    const size_t groups = gemm->groups.shared ? 1 : gemm->groups.count;
    const size_t lengths = gemm->n | gemm->k | gemm->x.stride | gemm->y.stride | gemm->y.first |
                           (gemm->glu.gated ? gemm->glu.ldh : 0);
    const moert_nvidia_condition conditions[] = {
        {has_values(gemm->x.quantized) && has_values(gemm->y.quantized) &&
             has_values(gemm->weight.quantized),
         "fp8-block in both operands"},
        {!wide && (type == MOERT_DTYPE_BF16 || type == MOERT_DTYPE_F16),
         "bf16 or f16 operands, bf16 with a quantized one"},
        {is_result(result), "results in f32, bf16 or f16"},
        {ungated || gemm->y.buffer == NULL || is_result(gemm->y.type), "c in f32, bf16 or f16"},
        {!gemm->more->discrete, "stacked weights"},
        {gemm->x.gather == NULL && gemm->y.gather == NULL, "no permutation"},
        {e->row_weight == NULL && (e->bias_scale == NULL || e->prob == NULL),
         "no row_weight, and only one of bias_scale and prob"},
        {lengths % GRAIN == 0, "n, k and strides that are multiples of 8"},
        {ungated || gemm->n % (2 * GRAIN) == 0, "n of a glu that is a multiple of 16"},
        {groups <= MOERT_NVIDIA_MOST_GROUPS, "at most 448 groups"},
        {gemm->groups.rows > 0 || (gemm->more->workspace != NULL && gemm->more->beta == NULL),
         "at least one row with beta"},
        {wgrad || gemm->more->workspace != NULL || gemm->panels != NULL, "prepacked weights"},
        {result == MOERT_DTYPE_F32 || gemm->epilogue.addend != MOERT_ADDEND_FIRST,
         "f32 results to add to"},
        {gemm->groups.runs == 0 || (moert_nvidia_uses_wgmma(device) && gemm->y.first == 0 &&
                                    ungated && result == MOERT_DTYPE_BF16),
         "scattered results in bf16 only, on GPUs of compute capability 9.0"},
        {are_decoded_ahead(device, gemm), "quantized operands in blocks along the reduction"},
    };
    return moert_nvidia_refusal(conditions, MOERT_COUNT(conditions));
}

typedef struct state {
    moert_buffer *counts;     /* uint32 [G], with quantized operands */
    moert_buffer *transposed; /* FP8: the transposed weight [G,K,N] */
} state;

static void release(moert_workspace *work) {
    state *own = work->state;
    if (own == NULL)
        return;
    moert_buffer_destroy(own->counts);
    moert_buffer_destroy(own->transposed);
    free(own);
    work->state = NULL;
}

static moert_status reserve(moert_device *device, const moert_gemm *gemm, moert_workspace *work) {
    const bool fp8 = moert_nvidia_is_fp8(gemm);
    const size_t bytes = fp8 ? moert_nvidia_fp8_bytes(gemm) : 0;
    state *own;
    MOERT_TRY(fp8 ? moert_tensor_map_ready(device) : moert_nvidia_ready(device));
    MOERT_TRY(MOERT_NEW(&own));
    work->state = own;
    if (bytes > 0)
        return moert_workspace_add(device, bytes, 1, work, &own->transposed);
    return moert_nvidia_is_quantized(gemm) && !fp8
               ? moert_workspace_add(device, gemm->groups.count, sizeof(uint32_t), work,
                                     &own->counts)
               : MOERT_OK;
}

static moert_status run(const moert_gemm *gemm) {
    const state none = {0},
                *own = gemm->more->workspace != NULL ? gemm->more->workspace->state : &none;
    if (moert_nvidia_splits(moert_buffer_device(gemm->groups.ends), gemm))
        return moert_nvidia_split(gemm);
    if (gemm->groups.rows == 0) /* a wgrad keeps its result (beta = 1) or clears it (beta = 0) */
        return gemm->epilogue.addend != MOERT_ADDEND_NONE
                   ? MOERT_OK
                   : moert_buffer_clear(gemm->weight.buffer, 0,
                                        gemm->groups.count * gemm->n * gemm->k *
                                            moert_dtype_bits(gemm->weight.type) / 8);
    return moert_nvidia_is_fp8(gemm) ? moert_nvidia_fp8(gemm, own->transposed)
                                     : moert_nvidia_run(gemm, own->counts);
}

static moert_status run_glu(const moert_glu *glu, bool backward) {
    return moert_backend_portable.glu(glu, backward);
}

const moert_backend moert_backend_nvidia = {.name = "nvidia",
                                            .supports = supports,
                                            .prepacker = &prepacker,
                                            .run = run,
                                            .glu = run_glu,
                                            .split_bytes = moert_nvidia_split_bytes,
                                            .reserve = reserve,
                                            .release = release,
                                            .decoded = MOERT_DTYPE_BF16,
                                            .coarse_fp8 = true};
