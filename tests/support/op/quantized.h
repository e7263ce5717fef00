/*
 * Op objects with quantized operands, as bytes in host memory: operands with known values, the
 * plain op on the same values, and a comparison of the quantized results byte by byte.
 */
#pragma once

#include "support/op/place.h"
#include "support/test.h"

/* The buffers of an op. Discrete weights follow each other in one array. */
typedef struct ops_bytes {
    moert_op shape; /* made by moert_op_describe() */
    unsigned char *at[MOERT_OP_BUFFERS];
    size_t bytes[MOERT_OP_BUFFERS];
    bool spread; /* ops_bytes_fill(): elements are uniform in [-2, 2), scales 1 or 2 */
} ops_bytes;

enum { OPS_UNSET = 0xCD }; /* every byte of a result before an execute */

/*
 * Creates the buffers that an op with these options uses. Operands per group, row or column hold
 * small values; plain operands hold -1, 0 and 1; results hold OPS_UNSET. Every other byte is 0xFF,
 * a NaN of most dtypes.
 */
ops_bytes ops_bytes_make(const moert_op_options *options, const uint32_t *ends);

static inline float *ops_floats(const ops_bytes *data, moert_op_buffer which) {
    return (float *)(void *)data->at[which];
}
static inline uint32_t *ops_bytes_ends(const ops_bytes *data) {
    return (uint32_t *)(void *)data->at[MOERT_OP_BUFFER_ends];
}

/* Reads or writes element i of a plain buffer in its dtype. */
double ops_bytes_get(const ops_bytes *data, moert_op_buffer which, size_t i);
void ops_bytes_put(ops_bytes *data, moert_op_buffer which, size_t i, double value);

/*
 * Fills the quantized operands of `data` with elements -1, 0 and 1 and scales that are powers of
 * two, or with the values that `spread` selects. Returns ops_bytes_decode() of `data`.
 */
ops_bytes ops_bytes_fill(ops_bytes *data);
/* Calls ops_bytes_make() and ops_bytes_fill(). */
ops_bytes ops_bytes_filled(const moert_op_options *options, const uint32_t *ends);

/* Returns the plain op on the dequantized operands of `data`, including global scales. Results that
 * are quantized in `data` become float32; everything else is a copy. */
ops_bytes ops_bytes_decode(const ops_bytes *data);

/* Quantizes values, the rows of all groups or a weight [G,N,K], into an operand with linear
 * scales. */
void ops_bytes_load(ops_bytes *data, moert_op_buffer which, const float *values);

/* Creates and compiles the op, executes it `times` times, and downloads all buffers. */
void ops_bytes_repeat(const char *backend, ops_bytes *data, size_t times);
void ops_bytes_execute(const char *backend, ops_bytes *data);
/* Executes an existing op `times` times on the buffers of `data`, and downloads all buffers. */
void ops_bytes_execute_op(moert_op *op, ops_bytes *data, size_t times);

/* Upload and download of the buffers. Discrete weights are uploaded into the arrays `weights` and
 * `scales`. */
moert_op_buffers ops_bytes_upload(const ops_bytes *data, moert_buffer **weights,
                                  moert_buffer **scales);
void ops_bytes_download(ops_bytes *data, moert_op_buffers *buffers);

/* Compares an executed op with the executed plain op `want`. Plain buffers must have the same bits.
 * Quantized results must be those of the reference quantizer on the plain results. Other bytes must
 * be unchanged. */
void ops_bytes_compare(const char *title, const ops_bytes *got, const ops_bytes *want);

/* Compares two ops whose weights have different layouts. All other buffers must hold the same
 * bytes; so must the weight if it is the result. */
void ops_assert_same_results(const char *title, const ops_bytes *got, const ops_bytes *want);

/* Executes once, then `times` times more, and checks that the result keeps its bits. */
void ops_bytes_check_repeats(const char *backend, ops_bytes *data, size_t times);

/* Executes a description on `backend` and its plain op on backend `plain`, and compares them with
 * ops_bytes_compare(). */
void ops_bytes_check_by(const char *title, const moert_op_options *options, const uint32_t *ends,
                        const char *plain, const char *backend);
/* Runs ops_bytes_check_by() for the reference and the portable backend, each compared with the
 * plain op on the same backend. */
void ops_bytes_check(const char *title, const moert_op_options *options, const uint32_t *ends);
