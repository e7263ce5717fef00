/*
 * GEMMs of the portable backend with conversions around the float32 products of
 * kernels/gemm/gemm.cl: kernels/op/rows.cl and glu.cl, where an operand has another type, order or
 * epilogue.
 */
#pragma once

#include "base/memory.h"
#include "gemm/backend.h"

/*
 * Float32 copies of what the kernels of the products cannot take as it is; NULL where the caller's
 * buffer serves. Weights are converted, or made, for `batch` groups at a time.
 */
typedef struct moert_general {
    bool direct;          /* the product's result is that of the GEMM */
    moert_buffer *x, *y;  /* operands [M,K], [M,N] */
    moert_buffer *weight; /* [batch,N,K] */
    moert_buffer *acc;    /* [M, columns of the product]; not in a wgrad */
    moert_buffer *wide;   /* MOERT_GATED_BACKWARD with dbias: dv [M,2K] before rounding */
    moert_buffer *peak;   /* amax: of every row [M], MOERT_GATED_BACKWARD [M,2] */
    size_t batch;
} moert_general;

moert_status moert_portable_reserve(moert_device *device, const moert_gemm *gemm,
                                    moert_workspace *work);
void moert_portable_release(moert_workspace *work);
moert_status moert_portable_general(const moert_gemm *gemm);
