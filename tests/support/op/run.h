/*
 * Op objects on host arrays: random operands with guards, an execute on a chosen backend, and GEMMs
 * in float64.
 */
#pragma once

#include "support/op/quantized.h"

/* The buffers of an op as floats; `ends` and `gather` hold uint32. */
typedef struct ops_data {
    moert_op shape; /* made by moert_op_describe() */
    float *at[MOERT_OP_BUFFERS];
    size_t count[MOERT_OP_BUFFERS];
} ops_data;

/*
 * Makes operands for a description: small integers (exact in every dtype) or normal random values.
 * alpha, beta, prob and scales have few bits; some are zero or negative. gather is a permutation.
 * Elements that must not be read are NaN: padding columns and, unless rows are permuted, rows past
 * the last end.
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
/* Returns the weights of all groups in one array, even if the op has discrete weights. */
static inline float *ops_weight(const ops_data *data) {
    return data->at[MOERT_OP_BUFFER_weight];
}

/* Encodes all buffers in their dtypes. */
ops_bytes ops_encode(const ops_data *data);

/* Creates and compiles the op, executes it `times` times, and downloads all arrays. */
void ops_execute(const char *backend, ops_data *data, size_t times);

/* Computes a GEMM in float64 and writes its results into the arrays. */
void ops_expect_gemm(ops_data *data);

/* Checks that a GEMM on integers is exact. */
void ops_check_gemm(const char *backend, const moert_op_options *options, const uint32_t *ends);

/* Checks that `backend` refuses a description with a message that contains `text`, and that the
 * option `fallback` selects the portable backend. */
void ops_check_fallback(const char *backend, moert_op_options options, const char *text);

/* Checks that all arrays have the same bits. */
void ops_compare(const char *title, const ops_data *got, const ops_data *want);
