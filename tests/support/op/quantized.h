/*
 * Op objects with quantized operands, as bytes: operands whose values are known, the plain op over
 * these values, and where the bytes of a result must lie. Addresses follow moert/ops.h, one element
 * at a time.
 */
#pragma once

#include "support/op/place.h"
#include "support/test.h"

/* The buffers of an op; those of discrete weights follow each other. */
typedef struct ops_bytes {
    moert_op shape; /* as described */
    unsigned char *at[MOERT_OP_BUFFERS];
    size_t bytes[MOERT_OP_BUFFERS];
    bool spread; /* how to fill: elements uniform in [-2, 2), scales 1 and 2 */
} ops_bytes;

enum { OPS_UNSET = 0xCD }; /* every byte of results before */

/*
 * Buffers for a description: operands per group, row or column hold small numbers, plain operands are
 * float32, F16, BF16 or FP8 of -1, 0 and 1. Everything else is 0xFF, a NaN of most types.
 */
ops_bytes ops_bytes_make(const moert_op_options *options, const uint32_t *ends);

static inline float *ops_floats(const ops_bytes *data, moert_op_buffer which) {
    return (float *)(void *)data->at[which];
}
static inline uint32_t *ops_bytes_ends(const ops_bytes *data) {
    return (uint32_t *)(void *)data->at[MOERT_OP_BUFFER_ends];
}

/* A buffer by its type: element i, and setting it. */
double ops_bytes_get(const ops_bytes *data, moert_op_buffer which, size_t i);
void ops_bytes_put(ops_bytes *data, moert_op_buffer which, size_t i, double value);

/*
 * Fills the quantized operands of `data`: elements -1, 0 and 1, scales that are powers of two, or
 * spread ones; returns the plain op on their values, the global scales multiplied in. Results of
 * the plain op are float32 where those of `data` are quantized.
 */
ops_bytes ops_bytes_fill(ops_bytes *data);
/* Buffers for a description, filled. */
ops_bytes ops_bytes_filled(const moert_op_options *options, const uint32_t *ends);

/* The plain op on the values that the quantized operands of `data` have, and all else as there. */
ops_bytes ops_bytes_decode(const ops_bytes *data);

/* Quantizes the rows of all groups, or a weight [G,N,K], into a factor with linear scales. */
void ops_bytes_load(ops_bytes *data, moert_op_buffer which, const float *values);

/* Creates, compiles and executes the op, `times` times; all buffers come back. */
void ops_bytes_repeat(const char *backend, ops_bytes *data, size_t times);
void ops_bytes_execute(const char *backend, ops_bytes *data);
/* Executes an op that is there already. */
void ops_bytes_execute_op(moert_op *op, ops_bytes *data, size_t times);

/* The buffers on the device, `weights` and `scales` being arrays for discrete ones; and back. */
moert_op_buffers ops_bytes_upload(const ops_bytes *data, moert_buffer **weights,
                                  moert_buffer **scales);
void ops_bytes_download(ops_bytes *data, moert_op_buffers *buffers);

/* What `got` holds is what `want`, the plain op after its execute, gives: plain buffers have the
 * same bits, quantized results those of the reference quantizer, other bytes are as they were. */
void ops_bytes_compare(const char *title, const ops_bytes *got, const ops_bytes *want);

/* Two ops that differ in how weights are given hold the same bytes of everything else. */
void ops_assert_same_results(const char *title, const ops_bytes *got, const ops_bytes *want);

/* Executes give the same result, bit for bit, `times` times more. */
void ops_bytes_check_repeats(const char *backend, ops_bytes *data, size_t times);

/* `backend` passes ops_bytes_compare for a description, by the plain op of backend `plain`. */
void ops_bytes_check_by(const char *title, const moert_op_options *options, const uint32_t *ends,
                        const char *plain, const char *backend);
/* The same of the reference and of the portable backend, each by itself. */
void ops_bytes_check(const char *title, const moert_op_options *options, const uint32_t *ends);
