/*
 * Op objects on host arrays: random operands with guards, an execute on a chosen backend, and what
 * a GEMM must give, in float64.
 */
#pragma once

#include "support/op/quantized.h"

/* The buffers of an op as floats; `ends` and `gather` hold uint32. */
typedef struct ops_data {
    moert_op shape; /* as described */
    float *at[MOERT_OP_BUFFERS];
    size_t count[MOERT_OP_BUFFERS];
} ops_data;

/*
 * Operands for a description: small integers (exact in every type) or normal numbers; alpha, beta,
 * prob and scales of few bits, some zero or negative; gather a permutation. What must not be read
 * holds NaN: columns between rows and, unless permuted, rows past the last end.
 */
ops_data ops_make(const moert_op_options *options, const uint32_t *ends, bool integers);

/* A copy of all arrays. */
ops_data ops_copy(const ops_data *data);

static inline const uint32_t *ops_ends(const ops_data *data) {
    return (const uint32_t *)(const void *)data->at[MOERT_OP_BUFFER_ends];
}
static inline uint32_t *ops_gather(const ops_data *data) {
    return (uint32_t *)(void *)data->at[MOERT_OP_BUFFER_gather];
}
static inline size_t ops_start(const ops_data *data, size_t g) {
    return ops_group_start(ops_ends(data), g);
}
/* The weight array: of the stack, or of all discrete buffers. */
static inline float *ops_weight(const ops_data *data) {
    return data->at[MOERT_OP_BUFFER_weight];
}

/* The same as bytes, in their types. */
ops_bytes ops_encode(const ops_data *data);

/* Creates, compiles and executes the op `times` times and writes all arrays back. */
void ops_execute(const char *backend, ops_data *data, size_t times);

/* Does to the arrays what a GEMM must do. */
void ops_expect_gemm(ops_data *data);

/* A GEMM on integers gives exactly what it must. */
void ops_check_gemm(const char *backend, const moert_op_options *options, const uint32_t *ends);

/* `backend` refuses a description with `text`, which the portable one takes instead. */
void ops_check_fallback(const char *backend, moert_op_options options, const char *text);

/* All arrays are the same bit for bit. */
void ops_compare(const char *title, const ops_data *got, const ops_data *want);
