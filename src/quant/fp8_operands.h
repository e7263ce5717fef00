/*
 * Quantizes matrices to operands of FP8 GEMMs on tensor cores (moert_gemm_takes_fp8): payloads in
 * E4M3 and float32 scales, as in MOERT_FORMAT_FP8_BLOCK. Scales are amax * f32(1/448), rounded up
 * to a power of two, at least 2^-127. So payload * scale has the values of FP8_BLOCK in
 * quant/fake_quantize.h. One pass reads x[M,N] once and writes one result or both:
 *
 *   along   payload [M,N]; blocks of 128 columns of a row; scales [M,N/128]
 *   down    for wgrads: the payload is transposed, [N, padded rows]; blocks of 128 rows of a group;
 *           scales [P,N], P = moert_row_blocks_most(M, G, 128). The rows of group g are columns
 *           from ends'[g-1] on, where ends' are the groups' ends if each group has a multiple of
 *           MOERT_FP8_ROW_MULTIPLE rows. The payload of padding is 0, or NaN in a block with a NaN
 *
 * With `tiles`, x are weights: groups of equally many rows, a multiple of 128, in blocks of 128 x
 * 128:
 *   along   payload [M,N], scales [M/128,N/128]
 *   down    of each group: payload [N,M/G], scales [N/128,M/G/128]
 *
 * The call enqueues and returns; it is not collective. Errors: ERROR_USAGE (a buffer is missing or
 * too small), ERROR_UNSUPPORTED (a count of 2^31 or more, N no multiple of 128, a stride no
 * multiple of 4, another dtype than F32 and BF16, or, of the portable backend, kernels in CPU
 * form), ERROR_DEVICE, ERROR_MEMORY.
 */
#pragma once

#include "args/quant.h"
#include "base/memory.h"
#include "quant/quantize.h"

typedef struct moert_fp8_operand {
    moert_buffer *q; /* payload; NULL: no such result */
    moert_buffer *scale;
} moert_fp8_operand;

typedef struct moert_fp8_operands {
    moert_groups groups; /* of rows; ends NULL: all rows are one group. tiles: ends are not used */
    size_t columns;      /* N */
    bool tiles;          /* gives both results */
    const moert_buffer *x; /* [M,N] of x_type (F32 or BF16) at x_stride elements (0: dense) */
    moert_dtype x_type;
    size_t x_stride;
    moert_fp8_operand along, down;
    moert_buffer *padded_ends; /* uint32 [G]: ends', an output with `down` but without `tiles` */
} moert_fp8_operands;

/* The padded rows for which `down` of rows has room. */
static inline size_t moert_fp8_padded_rows(size_t rows, size_t groups) {
    return moert_row_blocks_most(rows, groups, MOERT_FP8_ROW_MULTIPLE) * MOERT_FP8_ROW_MULTIPLE;
}

/* Bytes: reads x, writes the results. */
moert_status moert_fp8_operands_run(const moert_fp8_operands *op);

/* The options of a program that writes such operands (quant/fp8_rows.h). */
void moert_fp8_program(const char *family, const moert_fp8_operands *op,
                       char spec[MOERT_SPEC_BYTES]);
