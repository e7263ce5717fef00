/* The reference backend: host arrays, mapped buffers, access to elements, and the GLU. */
#pragma once

#include "base/dtype.h"
#include "device/mapping.h"
#include "gemm/backend.h"

/* Float32 operands in the groups' order; NULL for an operand that the GEMM does not read. */
typedef struct moert_host_arrays {
    float *x, *y;  /* operands [M,K], [M,N] */
    float *weight; /* weight[N,K] of the current group */
    float *acc;    /* [M, columns of the result] */
} moert_host_arrays;

/* A GEMM, and pointers to its buffers, mapped to host memory. For a buffer that is NULL the pointer
 * is NULL. */
typedef struct moert_host_gemm {
    const moert_gemm *gemm;
    moert_host_arrays *arrays;
    moert_mapping maps;
    const uint32_t *ends, *x_gather, *y_gather;
    void *x, *y, *weight, *bias;
    const float *alpha, *beta, *bias_scale, *row_weight, *prob, *acc_scale, *glu_prob;
    float *amax, *dprob;
    void *v, *h, *dv, *dbias;
    size_t rows; /* ends[G-1] */
} moert_host_gemm;

static inline size_t moert_host_start(const moert_host_gemm *host, size_t g) {
    return g > 0 ? host->ends[g - 1] : 0;
}

/* moert_host_load reads element i of an array of a type. moert_host_round rounds a value to a type.
 * moert_host_store stores a value, rounded to a type, as element i. */
float moert_host_load(const void *memory, moert_dtype type, size_t i);
float moert_host_round(moert_dtype type, float value);
void moert_host_store(void *memory, moert_dtype type, size_t i, float value);

/* Raises *peak to |value|; a NaN stays. */
void moert_host_raise(float *peak, float value);

/* From the sums of group g in arrays->acc, moert_host_glu computes v, h and amax (forward), and
 * moert_host_dglu computes dv, dprob, dbias and amax (backward). */
void moert_host_glu(const moert_host_gemm *host, size_t g);
void moert_host_dglu(const moert_host_gemm *host, size_t g);

/* The GLU as a separate call. */
moert_status moert_reference_glu(const moert_glu *glu, bool backward);
