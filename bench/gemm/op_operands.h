/* The operands of bench_op's GEMMs, patterns of random numbers, and what their results must be. */
#pragma once

#include "moert/ops.h"

/* The GEMM's operands and, beside them, the result. */
typedef struct op_form {
    const char *name;
    moert_dtype operand, result;
    bool blocks;     /* rows in blocks of 1x128, in wgrad of 128x1, weights in blocks of 128x128 */
    bool transposed; /* dgrad alone, its weights stored transposed */
    bool quantized;  /* blocks of `format` along the reduction index */
    moert_format format;
} op_form;

/* An op, and its epilogue. */
typedef struct op_variant {
    const char *title;
    moert_op_kind kind;
    bool f32; /* the result */
    bool accumulate, bias, prob, amax, save_c, interleaved;
} op_variant;

typedef struct op_shape {
    size_t experts, rows, n, k; /* rows of all experts */
} op_shape;

/* Operands of a form and a shape: x[rows,k], weight[experts,n,k], y[rows,n] and what an epilogue
 * reads, all from element 0 of the patterns on. */
typedef struct op_operands {
    moert_device *device;
    const op_form *form;
    op_shape of;
    bool ragged;
    size_t seed;
    uint32_t *ends;           /* [experts] */
    unsigned char *payload;   /* [BENCH_PATTERN] elements of op_operand_bytes, two E2M1 in a byte */
    unsigned char *scales;    /* [BENCH_PATTERN] float32, all 1 without blocks, or codes */
    float *values, *scale_of; /* [BENCH_PATTERN] what they stand for, but for E2M1 */
} op_operands;

/* Fills in the ends and the patterns. Release them after an error, too. */
moert_status op_operands_make(op_operands *o);
void op_operands_release(op_operands *o);

/* Bytes of an operand's element, or of two halves. */
size_t op_operand_bytes(const op_form *form);

/* The buffers of an op, as far as it has them: the result and what is added to it, too. */
moert_status op_buffers_make(const op_operands *o, const moert_op_options *options,
                             const moert_op *op, moert_op_buffers *buffers);
void op_buffers_release(moert_op_buffers *buffers);

/* Counts the samples of the result that are off by more than the rounding to 16 bits and 1e-5 of
 * the terms, of FP8 ones, which the tensor cores add up less exactly, 1e-4. */
moert_status op_count_wrong(const op_operands *o, const op_variant *v,
                            const moert_op_buffers *buffers, size_t *wrong);
