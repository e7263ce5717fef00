/* The portable backend, for any OpenCL device: its functions and the GEMMs that it supports. */
#include "device/device.h"
#include "gemm/portable/gemm.h"
#include "gemm/portable/general.h"

static moert_status run(const moert_gemm *gemm) {
    static moert_status (*const runs[])(const moert_gemm *gemm, size_t start) = {
        [MOERT_GEMM_FORWARD] = moert_portable_forward_from,
        [MOERT_GEMM_DGRAD] = moert_portable_dgrad_from,
        [MOERT_GEMM_WGRAD] = moert_portable_wgrad_from,
    };
    return gemm->more->workspace != NULL        ? moert_portable_general(gemm)
           : gemm->glu.gated                    ? moert_portable_gated(gemm)
           : gemm->kind == MOERT_GEMM_BIAS_GRAD ? moert_portable_bias_grad(gemm)
                                                : runs[gemm->kind](gemm, 0);
}

/* In the GPU form the caller dequantizes weights before the GEMM. */
static const char *supports(const moert_device *device, const moert_gemm *gemm) {
    if (gemm == NULL)
        return NULL;
    if (gemm->x.quantized != NULL || gemm->y.quantized != NULL)
        return "rows that are dequantized";
    if (gemm->weight.quantized != NULL && moert_device_describe(device)->gpu_form)
        return "weights that are dequantized";
    if (gemm->groups.runs > 0)
        return "results without scatter";
    if (gemm->more->workspace != NULL &&
        (gemm->groups.end > 0 || gemm->groups.shared ||
         gemm->epilogue.addend == MOERT_ADDEND_FIRST || gemm->y.first > 0))
        return "whole matrices and a weight for each group, with a workspace";
    return gemm->more->workspace != NULL || moert_gemm_is_plain(gemm) ? NULL : MOERT_PLAIN_GEMMS;
}

/* Only the kernels for CPUs with bf16 operands write a rounded weight gradient. */
static bool rounds(const moert_device *device, const moert_gemm *gemm) {
    return moert_gemm_type(gemm) == MOERT_DTYPE_BF16 && !moert_device_describe(device)->gpu_form;
}

const moert_backend moert_backend_portable = {.name = "portable",
                                              .supports = supports,
                                              .prepacker = &moert_portable_prepacker,
                                              .run = run,
                                              .glu = moert_portable_glu,
                                              .reserve = moert_portable_reserve,
                                              .release = moert_portable_release,
                                              .rounds = rounds,
                                              .records = true};
