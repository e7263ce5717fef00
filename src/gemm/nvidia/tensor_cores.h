/*
 * GEMMs on the tensor cores of NVIDIA GPUs. On Hopper, kernels/gemm/nvidia/wgmma.cl multiplies
 * operands of one 16-bit type; on other GPUs from compute capability 8.0 on,
 * kernels/gemm/nvidia/mma.cl does. On Hopper, fp8.cl multiplies FP8 operands, and split.cl
 * multiplies split float32 operands. Sums are the float32 sums of tensor cores. Sums of tensor
 * cores are the same in every run and do not depend on other rows. The sums agree with other
 * backends only within rounding.
 */
#pragma once

#include "gemm/backend.h"

#define MOERT_NVIDIA_REQUIRES "GPUs of compute capability 8.0 and later"

/* The most groups for which the arena of kernels/gemm/nvidia/wgmma.cl has room. */
enum { MOERT_NVIDIA_MOST_GROUPS = 448 };

/* Operand A, operand B and the result of a GEMM other than bias_grad. The result has as many lines
 * as A and as many columns as B. For a weight, the buffer is the prepacked copy if one exists, and
 * each row has K elements. */
moert_matrix moert_nvidia_first_operand(const moert_gemm *gemm);
moert_matrix moert_nvidia_second_operand(const moert_gemm *gemm);
moert_matrix moert_nvidia_result_operand(const moert_gemm *gemm);

/* Whether any operand of the GEMM is quantized. */
static inline bool moert_nvidia_is_quantized(const moert_gemm *gemm) {
    return gemm->x.quantized != NULL || gemm->y.quantized != NULL || gemm->weight.quantized != NULL;
}

/* Whether the GEMM computes only some of the groups. */
static inline bool moert_nvidia_is_part(const moert_gemm *gemm) {
    const moert_row_groups part = moert_groups_filled(gemm->groups);
    return part.end - part.first < part.count;
}

/* A condition on a GEMM, and the text for `supports` if the condition does not hold. */
typedef struct moert_nvidia_condition {
    bool holds;
    const char *required;
} moert_nvidia_condition;
/* The text of the first condition that does not hold, or NULL. */
const char *moert_nvidia_refusal(const moert_nvidia_condition *conditions, size_t count);

/* Whether GEMMs of 16-bit operands, and of operands decoded to bf16, use wgmma on this device. */
bool moert_nvidia_uses_wgmma(const moert_device *device);

/* ERROR_UNSUPPORTED if the device uses wgmma but its driver cannot make tensor maps. */
moert_status moert_nvidia_ready(const moert_device *device);

/* Runs a GEMM that the backend supports, by wgmma.cl or mma.cl. `counts`: uint32 [G] if an operand
 * is quantized, which kernels/gemm/nvidia/ahead.h decodes; else NULL. */
moert_status moert_nvidia_run(const moert_gemm *gemm, moert_buffer *counts);

/* GEMMs of FP8 operands, by kernels/gemm/nvidia/fp8.cl. moert_nvidia_is_fp8 tells whether both
 * operands are FP8. moert_nvidia_fp8_refusal returns the reason why the kernel cannot compute the
 * GEMM (a text for `supports`, or NULL). moert_nvidia_fp8_bytes returns the bytes of a transposed
 * weight in the workspace. moert_nvidia_fp8 launches the kernel. */
bool moert_nvidia_is_fp8(const moert_gemm *gemm);
const char *moert_nvidia_fp8_refusal(const moert_device *device, const moert_gemm *gemm);
size_t moert_nvidia_fp8_bytes(const moert_gemm *gemm);
moert_status moert_nvidia_fp8(const moert_gemm *gemm, moert_buffer *transposed);

/* moert_nvidia_splits tells whether a float32 GEMM is computed by splitting its operands into bf16
 * parts. moert_nvidia_split launches such a GEMM. */
bool moert_nvidia_splits(const moert_device *device, const moert_gemm *gemm);
moert_status moert_nvidia_split(const moert_gemm *gemm);
/* The largest number of bytes that the bf16 parts need in forward, dgrad or wgrad; 0 if no operand
 * is split in these GEMMs. */
size_t moert_nvidia_split_bytes(const moert_device *device, const moert_gemm *gemm);
