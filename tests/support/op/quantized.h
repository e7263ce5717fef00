/*
 * Op objects with quantised operands, as bytes: factors whose values are known, the plain op over
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
 * Buffers for a description: factors per group, row or column hold small numbers, plain factors are
 * float32, F16, BF16 or FP8 of -1, 0 and 1. Everything else is 0xFF, a NaN of most types.
 */
ops_bytes ops_bytes_make(const moert_op_options *options, const uint32_t *ends);

static inline float *ops_floats(const ops_bytes *data, moert_op_buffer which) {
    return (float *)(void *)data->at[which];
}

/*
 * Fills the quantised factors of `data`: elements -1, 0 and 1, scales that are powers of two, or
 * spread ones; returns the plain op on their values, the global scales multiplied in. Results of
 * the plain op are float32 where those of `data` are quantised.
 */
ops_bytes ops_bytes_fill(ops_bytes *data);
/* Buffers for a description, filled. */
ops_bytes ops_bytes_filled(const moert_op_options *options, const uint32_t *ends);

/* The plain op on the values that the quantised factors of `data` have. */
ops_bytes ops_bytes_decode(const ops_bytes *data);

/* Quantises the rows of all groups, or a weight [G,N,K], into a factor with linear scales. */
void ops_bytes_load(ops_bytes *data, moert_op_buffer which, const float *values);

/* Creates, compiles and executes the op; all buffers come back. */
void ops_bytes_execute(const char *backend, ops_bytes *data);

/* The buffers on the device, `weights` and `scales` being arrays for discrete ones; and back. */
moert_op_buffers ops_bytes_upload(const ops_bytes *data, moert_buffer **weights,
                                  moert_buffer **scales);
void ops_bytes_download(ops_bytes *data, moert_op_buffers *buffers);

/* What `got` holds is what `want`, the plain op after its execute, gives: plain buffers have the
 * same bits, quantised results those of the reference quantiser, other bytes are as they were. */
void ops_bytes_compare(const char *title, const ops_bytes *got, const ops_bytes *want);

/* `backend` passes ops_bytes_compare for a description, by the plain op of backend `plain`. */
void ops_bytes_check_by(const char *title, const moert_op_options *options, const uint32_t *ends,
                        const char *plain, const char *backend);
/* The same of the reference and of the portable backend, each by itself. */
void ops_bytes_check(const char *title, const moert_op_options *options, const uint32_t *ends);

/* A quantised operand; scales are linear where the format has no others, `layout` modulo 3. */
moert_operand ops_scaled(moert_format format, moert_axis axis, size_t layout);

/* The usual groups: empty in front, between and behind; no size is a multiple; rows past the last
 * end. And a description of products over them. */
enum { OPS_GROUPS = 6, OPS_ROWS = 140 };
extern const uint32_t ops_usual_ends[OPS_GROUPS];
moert_op_options ops_usual(moert_op_kind kind);

/* The one of x and y that is multiplied first. */
moert_operand *ops_first_factor(moert_op_options *options);
