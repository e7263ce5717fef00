/*
 * Products on the tensor cores of NVIDIA GPUs, from compute capability 8.0 on by
 * kernels/gemm/nvidia/mma.cl, on Hopper by kernels/gemm/nvidia/wgmma.cl: operands are
 * of one 16-bit type. Sums are the tensor cores' float32 sums: the same in every
 * run and for a row among any others, but within rounding of the other backends' only.
 */
#pragma once

#include "gemm/backend.h"

#define MOERT_NVIDIA_TAKES "GPUs of compute capability 8.0 and later"

enum { MOERT_NVIDIA_MOST_GROUPS = 448 }; /* what kernels/gemm/nvidia/wgmma.cl has room for */

/* Whether 16-bit numbers, and codes of them, are multiplied by wgmma there. */
bool moert_nvidia_uses_wgmma(const moert_device *device);

/* Whether products can be run on a device that has: ERROR_UNSUPPORTED says why not. */
moert_status moert_nvidia_ready(const moert_device *device);

/* A GEMM that the backend supports, whose weight is an operand as it is or as it is packed. `counts`:
 * uint32 [G] for operands in codes, which kernels/gemm/nvidia/ahead.h decodes; or NULL. */
moert_status moert_nvidia_run(const moert_gemm *gemm, moert_buffer *counts);

/* FP8 operands, by kernels/gemm/nvidia/fp8.cl: whether both are, what of the GEMM it cannot do (NULL:
 * nothing), and that GEMM, whose workspace holds the transpose of a weight. */
bool moert_nvidia_is_fp8(const moert_gemm *gemm);
const char *moert_nvidia_fp8_refusal(const moert_device *device, const moert_gemm *gemm);
size_t moert_nvidia_fp8_bytes(const moert_gemm *gemm);
moert_status moert_nvidia_fp8(const moert_gemm *gemm, moert_buffer *transposed);

/* Whether a GEMM in float32 is one of parts of its factors, and that GEMM. */
bool moert_nvidia_splits(const moert_device *device, const moert_gemm *gemm);
moert_status moert_nvidia_split(const moert_gemm *gemm);
/* The bytes that its parts take at most, in any kind; 0: in none it is such a product. */
size_t moert_nvidia_split_bytes(const moert_device *device, const moert_gemm *gemm);
