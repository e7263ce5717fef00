/*
 * GEMMs of the portable backend with a workspace: kernels/op/rows.cl and glu.cl convert operands of
 * other types and row orders before the float32 GEMM of kernels/gemm/gemm.cl, and apply the
 * epilogue after this GEMM.
 */
#pragma once

#include "base/memory.h"
#include "gemm/backend.h"

/*
 * Float32 buffers for matrices that the GEMM kernels cannot read or write directly; NULL where the
 * kernels use the caller's buffer. Weights are converted for `batch` groups at a time.
 */
typedef struct moert_general {
    bool direct;          /* the kernels write the caller's result; no epilogue follows */
    moert_buffer *x, *y;  /* operands [M,K], [M,N] */
    moert_buffer *weight; /* [batch,N,K] */
    moert_buffer *acc;    /* sums of forward [M,N] or dgrad [M,K], then results at the offsets
                             `wide` and `peak` */
    size_t wide;          /* MOERT_GATED_BACKWARD with dbias: offset of dv [M,2K] before rounding;
                             else 0 */
    size_t peak;          /* with amax: offset of each row's amax, [M] or, with
                             MOERT_GATED_BACKWARD, [M,2]; else 0 */
    size_t batch;
} moert_general;

moert_status moert_portable_reserve(moert_device *device, const moert_gemm *gemm,
                                    moert_workspace *work);
void moert_portable_release(moert_workspace *work);
moert_status moert_portable_general(const moert_gemm *gemm);
