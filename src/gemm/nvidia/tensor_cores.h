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

/* An operand or the result: rows of a matrix, from column `first` on, or its blocks. */
typedef struct moert_operand {
    moert_buffer *buffer;         /* of a weight, prepacked if it is */
    size_t stride, first;         /* in numbers; of a weight rows of K */
    const moert_quantized *codes; /* NULL: plain */
    bool wide;
} moert_operand;
typedef enum moert_operand_name {
    MOERT_OPERAND_X,
    MOERT_OPERAND_Y,
    MOERT_OPERAND_WEIGHT
} moert_operand_name;
moert_operand moert_operand_of(const moert_gemm *gemm, moert_operand_name name);
/* The one that has the lines of the result, the one that has its columns, and the result; not of
 * bias_grad. */
moert_operand moert_first_operand(const moert_gemm *gemm);
moert_operand moert_second_operand(const moert_gemm *gemm);
moert_operand moert_result_operand(const moert_gemm *gemm);

/* Whether an operand has codes. */
static inline bool moert_gemm_is_quantized(const moert_gemm *gemm) {
    return gemm->x_quantized != NULL || gemm->y_quantized != NULL || gemm->weight_quantized != NULL;
}

/* What a GEMM must be, and what the backend takes therefore; the first that it is not, or NULL. */
typedef struct moert_condition {
    bool holds;
    const char *taken;
} moert_condition;
const char *moert_first_refusal(const moert_condition *conditions, size_t count);

/* Whether 16-bit numbers, and codes of them, are multiplied by wgmma there. */
bool moert_nvidia_uses_wgmma(const moert_device *device);

/* Whether products can be run on a device that has: ERROR_UNSUPPORTED says why not. */
moert_status moert_nvidia_ready(const moert_device *device);

/* A GEMM that the backend supports, whose weight is an operand as it is or as it is prepacked. `counts`:
 * uint32 [G] for operands in codes, which kernels/gemm/nvidia/ahead.h decodes; or NULL. */
moert_status moert_nvidia_run(const moert_gemm *gemm, moert_buffer *counts);

/* FP8 operands, by kernels/gemm/nvidia/fp8.cl: whether both are, what of the GEMM it cannot do (NULL:
 * nothing), and that GEMM, whose workspace holds the transpose of a weight. */
bool moert_nvidia_is_fp8(const moert_gemm *gemm);
const char *moert_nvidia_fp8_refusal(const moert_device *device, const moert_gemm *gemm);
size_t moert_nvidia_fp8_bytes(const moert_gemm *gemm);
moert_status moert_nvidia_fp8(const moert_gemm *gemm, moert_buffer *transposed);

/* Whether a GEMM in float32 is one of parts of its operands, and that GEMM. */
bool moert_nvidia_splits(const moert_device *device, const moert_gemm *gemm);
moert_status moert_nvidia_split(const moert_gemm *gemm);
/* The bytes that its parts take at most, in any kind; 0: in none it is such a product. */
size_t moert_nvidia_split_bytes(const moert_device *device, const moert_gemm *gemm);
