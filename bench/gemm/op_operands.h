/* The operands of bench_op's GEMMs (patterns of random numbers), and the check of their results. */
#pragma once

#include "bench/gemm/check.h"

/* Dtypes and formats of the operands and the result. */
typedef struct op_form {
    const char *name;
    moert_dtype operand, result;
    bool blocks; /* scales for blocks: of 1x128 for rows (128x1 in wgrad), of 128x128 for weights */
    bool transposed; /* weights are stored transposed (only dgrad) */
    bool quantized;  /* operands have `format`, with blocks along the reduction index */
    moert_format format;
} op_form;

/* An op, and its epilogue. */
typedef struct op_variant {
    const char *title;
    moert_op_kind kind;
    bool f32;        /* the result is float32 */
    unsigned fields; /* bits of MOERT_OP_FIELD_* */
    bool interleaved;
} op_variant;

typedef struct op_shape {
    size_t experts, rows, n, k; /* rows: sum over the experts */
} op_shape;

/* Operands of a form and a shape: x[rows,k], weight[experts,n,k], y[rows,n] and the inputs of an
 * epilogue. Each operand starts with element 0 of the patterns. */
typedef struct op_operands {
    moert_device *device;
    const op_form *form;
    op_shape of;
    bool ragged;
    size_t seed;
    uint32_t *ends; /* [experts] */
    /* [BENCH_PATTERN] elements of op_operand_bytes() bytes; a byte holds two E2M1 elements */
    unsigned char *payload;
    /* [BENCH_PATTERN] scales: float32 (all 1 without blocks), or one byte each */
    unsigned char *scales;
    /* [BENCH_PATTERN] decoded payload and scales; E2M1 payloads have no `values` */
    float *values, *scale_of;
} op_operands;

/* Makes `ends` and the patterns. The caller must call op_operands_release, also after an error. */
moert_status op_operands_make(op_operands *o);
void op_operands_release(op_operands *o);

/* Returns the bytes of an operand's element; for 4-bit elements, the bytes of two. */
size_t op_operand_bytes(const op_form *form);

/* Creates and fills all buffers that the op has, also the result, to which accumulate adds. */
moert_status op_buffers_make(const op_operands *o, const moert_op *op, moert_op_buffers *buffers);
void op_buffers_release(moert_op_buffers *buffers);

/* Calls bench_count_wrong() for the result. Sums may have an error of 1e-5 times the sum of the
 * summands' magnitudes. For plain FP8 the factor is 1e-4, because tensor cores add FP8 products
 * less exactly. */
moert_status op_count_wrong(const op_operands *o, const moert_op *op,
                            const moert_op_buffers *buffers, size_t *wrong);
