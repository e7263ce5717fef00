/*
 * The buffers of an op as bytes in host memory. Functions make operands with known values, make the
 * plain op on the same values, execute ops, and compare quantized results byte by byte.
 */
#pragma once

#include "support/op/cases.h"
#include "support/op/place.h"
#include "support/test.h"

/*
 * The values of operands. OPS_EXACT: small integers, in quantized operands -1, 0 and 1 with scales
 * that are powers of two, so that no sum is rounded. OPS_SPREAD: uniform in [-2, 2), in quantized
 * operands with scales 1 and 2. OPS_NORMAL: normally distributed; OPS_WIDE: normally distributed,
 * times powers of two over eleven binary orders; OPS_SMALL: uniform in [-0.2, 0.2), drawn in a few
 * cycles. OPS_NORMAL, OPS_WIDE and OPS_SMALL are not for quantized operands. alpha, beta and prob
 * always have few bits; some are zero or negative.
 */
typedef enum ops_values { OPS_EXACT, OPS_SPREAD, OPS_NORMAL, OPS_WIDE, OPS_SMALL } ops_values;

/* The buffers of an op. Discrete weights follow each other in one array. */
typedef struct ops_bytes {
    moert_op shape; /* the description that moert_op_describe() has made */
    unsigned char *at[MOERT_OP_BUFFERS];
    size_t bytes[MOERT_OP_BUFFERS];
    ops_values values;
} ops_bytes;

enum { OPS_UNSET = 0xCD }; /* every byte of a result before an execute */

/*
 * Makes the buffers that an op uses. gather is a permutation. Bytes that must not be read, such as
 * padding columns and rows past the last end, are 0xFF, a NaN of most dtypes. Results are
 * OPS_UNSET, unless the op adds to them.
 */
ops_bytes ops_bytes_make(const moert_op_options *options, const uint32_t *ends, ops_values values);
/* A copy of all buffers. */
ops_bytes ops_bytes_copy(const ops_bytes *data);

static inline float *ops_floats(const ops_bytes *data, moert_op_buffer which) {
    return (float *)(void *)data->at[which];
}
static inline uint32_t *ops_bytes_ends(const ops_bytes *data) {
    return (uint32_t *)(void *)data->at[MOERT_OP_BUFFER_ends];
}
static inline uint32_t *ops_gather(const ops_bytes *data) {
    return (uint32_t *)(void *)data->at[MOERT_OP_BUFFER_gather];
}

/* ops_bytes_count() returns the number of elements of a plain buffer; ops_bytes_get() and
 * ops_bytes_put() read and write element i in the buffer's dtype. */
size_t ops_bytes_count(const ops_bytes *data, moert_op_buffer which);
double ops_bytes_get(const ops_bytes *data, moert_op_buffer which, size_t i);
void ops_bytes_put(ops_bytes *data, moert_op_buffer which, size_t i, double value);

/* Returns the plain op on the dequantized operands of `data`, including global scales. Results that
 * are quantized in `data` become float32; everything else is a copy. */
ops_bytes ops_bytes_decode(const ops_bytes *data);

/* Quantizes values, the rows of all groups or a weight [G,N,K], into an operand with linear
 * scales. */
void ops_bytes_load(ops_bytes *data, moert_op_buffer which, const float *values);

/* Creates and compiles the op, executes it, and downloads all buffers. */
void ops_bytes_execute(const char *backend, ops_bytes *data);
/* Executes an existing op on the buffers of `data`, and downloads all buffers. */
void ops_bytes_execute_op(moert_op *op, ops_bytes *data);

/* Upload and download of the buffers. The running test owns the arrays of discrete weights. */
moert_op_buffers ops_bytes_upload(const ops_bytes *data);
void ops_bytes_download(ops_bytes *data, const moert_op_buffers *buffers);

/* Compares the results of an executed op with those of the executed plain op `want`. Plain results
 * must have the same bits. Quantized results must have the bytes that the reference quantizer gives
 * for the plain results. */
void ops_bytes_compare(const char *title, const ops_bytes *got, const ops_bytes *want);

/* Checks that all buffers hold the same bytes. Without `weights`, the weight's buffers are not
 * compared, because their layout may differ, unless the weight is the result. */
void ops_assert_same(const char *title, const ops_bytes *got, const ops_bytes *want, bool weights);

/* Executes the op once. Then executes another op of the same description `times` times, in runs of
 * up to three, and checks that the results have the same bits. The op must not add to its
 * results. */
void ops_bytes_check_repeats(const char *backend, const ops_bytes *data, size_t times);

/* ---- parts of ops: the rows of a group, alone and among others ---- */

/* Corresponding rows of two ops: `rows` rows of group g in `many` after its first `skipped` ones,
 * and the first `rows` rows of group h in `few`. */
typedef struct ops_pair {
    ops_bytes *few;
    const ops_bytes *many;
    size_t h, g, rows, skipped;
} ops_pair;

/* Copies the rows of the pair, and the group's part of all other operands and results, from `many`
 * to `few`. */
void ops_copy_rows(const ops_pair *p);
/* Checks that the rows of the pair, and the group's part of all other results, have the same bytes
 * in `many` and `few`. */
void ops_assert_same_rows(const char *title, const ops_pair *p);

/* Checks that the results of every group of the executed op `all` have the same bytes in an op with
 * `options` on only that group. `start`: the buffers of `all` before the execute. */
void ops_check_alone(const char *title, const char *backend, moert_op_options options,
                     const ops_bytes *start, const ops_bytes *all);
