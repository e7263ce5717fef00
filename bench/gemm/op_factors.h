/* The factors of bench_op's products, patterns of random codes, and what their results must be. */
#pragma once

#include "moert/ops.h"

typedef struct shape {
    size_t experts, rows, n, k; /* rows of all experts */
} shape;

/* Factors and, beside them, the result. */
typedef struct op_form {
    const char *name;
    moert_number factor, result;
    bool blocks; /* rows in blocks of 1x128, in wgrad of 128x1, weights in blocks of 128x128 */
    bool turned; /* dgrad alone, its weights stored transposed */
    bool coded;  /* blocks of `format` along what is summed over */
    moert_format format;
} op_form;

typedef struct factors {
    moert_device *device;
    const op_form *form;
    size_t seed;
    unsigned char *pattern; /* of factors, two in a byte or one in its bytes */
    unsigned char *scales;  /* float32, all 1 without blocks, or codes */
} factors;

/* A shape with its operands: x[rows,k], weight[experts,n,k], y[rows,n], and a result of any op; all
 * scales are the same buffer. */
typedef struct problem {
    shape of;
    bool ragged;
    size_t multiple; /* of a ragged expert's rows */
    uint32_t *ends;
    moert_buffer *ends_buffer, *x, *weight, *y, *scales, *result;
} problem;

/* The patterns of f->form. They and what was made of a problem before an error are released too. */
moert_status op_factors_make(factors *f);
void op_factors_release(factors *f);
moert_status op_problem_make(const factors *f, problem *p);
void op_problem_release(problem *p);

/* Counts the samples of p->result that are off by more than the rounding to 16 bits and 1e-5 of the
 * terms, of FP8 ones, which the tensor cores add up less exactly, 1e-4. */
moert_status op_problem_check(const factors *f, const problem *p, moert_op_kind kind,
                              size_t *wrong);

/* Bytes of a factor, or of two halves. */
size_t op_factor_bytes(const factors *f);
