/*
 * Products on the tensor cores of NVIDIA GPUs, from compute capability 8.0 on by
 * kernels/gemm/nvidia/mma.cl, on Hopper by kernels/gemm/nvidia/wgmma.cl: the launch behind the op
 * objects and the grouped operations. Sums are the tensor cores' float32 sums: the same in every
 * run and for a row among any others, but within rounding of the other backends' only.
 */
#ifndef MOERT_GEMM_NVIDIA_TENSOR_CORES_H
#define MOERT_GEMM_NVIDIA_TENSOR_CORES_H

#include "gemm/gemm.h"
#include "moert/ops.h"

#define MOERT_NVIDIA_TAKES "GPUs of compute capability 8.0 and later"

/* A row matrix, from its column `first` on. */
typedef struct moert_nvidia_rows {
    moert_buffer *buffer;
    size_t stride, first; /* in numbers */
    moert_number type;
} moert_nvidia_rows;

/*
 * y = x weight^T, x = y weight or weight = y^T x, by `kind` (to MOERT_OP_GLU), then what
 * kernels/gemm/nvidia/epilogue.h says. Factors are of one 16-bit type, the weight as a factor too.
 * Buffers that are NULL have no part in it.
 */
typedef struct moert_nvidia_product {
    moert_op_kind kind;
    moert_groups groups;
    moert_part part; /* forward, dgrad, GLU, not shared: of the groups; zeros: all */
    bool shared;     /* not wgrad: one weight and bias for all groups */
    size_t n, k;
    moert_nvidia_rows x, y; /* GLU: y is the result, h, d of the ops */
    moert_buffer *weight;   /* [G,N,K] */
    moert_number weight_type;
    bool accumulate;                         /* beta is 1 */
    const moert_buffer *alpha, *beta, *bias; /* float32 [G], [G]; [G,N] */
    const moert_buffer *factor, *amax;       /* float32 [M], [G] */
    size_t factor_stride;                    /* in numbers */
    moert_number bias_type;
    moert_glu_form glu; /* GLU: limit, alpha and offset */
    size_t run;         /* columns of gate or up side by side; N / 2: halves */
    bool linear_first;
    moert_scatter scatter; /* wgmma: forward, dgrad, of 16 bits, as they are summed */
    moert_nvidia_rows v;   /* GLU: kept, unless NULL */
    /* [2] or NULL: the first and the second factor in codes (q NULL: it is none), which the kernel
     * of wgmma decodes into the factor's buffer */
    const moert_coded *coded;
    moert_buffer *counts; /* coded: uint32 [G] for its use; else of moert_device_share, or NULL */
} moert_nvidia_product;

enum { MOERT_NVIDIA_MOST_GROUPS = 448 }; /* what kernels/gemm/nvidia/wgmma.cl has room for */

/* Whether 16-bit numbers, and codes of them, are multiplied by wgmma there. */
bool moert_nvidia_uses_wgmma(const moert_device *device);

/* Whether products can be run on a device that has: ERROR_UNSUPPORTED says why not. */
moert_status moert_nvidia_ready(const moert_device *device);

/* The arguments have been checked, and that n, k, strides and first columns are multiples of 8. */
moert_status moert_nvidia_run(const moert_nvidia_product *p);

/* Whether a GEMM in float32 is one of parts of its factors, and that GEMM. */
bool moert_nvidia_splits(const moert_device *device, const moert_gemm *gemm);
moert_status moert_nvidia_split(const moert_gemm *gemm);
/* The bytes that its parts take at most, in any kind; 0: in none it is such a product. */
size_t moert_nvidia_split_bytes(const moert_device *device, const moert_gemm *gemm);

#endif
