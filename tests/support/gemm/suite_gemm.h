/*
 * Grouped GEMMs of any size for the suites. An element of an operand is a function of its index, so
 * any element of a result can be checked without the whole operands on the host: bit for bit
 * against the promised chain of fma (moert/ops.h), and in float64.
 */
#pragma once

#include "op/op.h"
#include "support/test.h"

typedef struct suite_gemm {
    moert_op_options options; /* a GEMM with dense rows; alpha and beta are not filled in */
    const uint32_t *ends;     /* [G] */
    const uint32_t *gather;   /* [M], if rows are permuted */
    bool signs; /* elements are -1, 0 and 1; otherwise nearly normal with standard deviation 0.1 */
    size_t first_row, first_group; /* position in the larger GEMM, if this GEMM is a part of one */
} suite_gemm;

/* A GEMM whose operands and result have one dtype. */
suite_gemm suite_gemm_of(moert_op_kind kind, moert_dtype type, size_t groups, size_t rows, size_t n,
                         size_t k);

/* Executes the op and returns its result, in the result's dtype. Discrete weights follow each
 * other. The running test owns the result (test.h). */
void *suite_gemm_run(const char *backend, const suite_gemm *p);
size_t suite_gemm_bytes(const suite_gemm *p);

/* Checks `samples` elements, spread over the result. Each must have the promised bits, and differ
 * from float64 by at most absolute + (relative + rounding of the dtype) * |value|. */
void suite_gemm_check(const char *title, const suite_gemm *p, const void *result, size_t samples,
                      double absolute, double relative);

/* Checks that the reference backend gives the same bits, if M N K is at most `most`. */
void suite_gemm_check_backends(const char *title, const suite_gemm *p, const void *result,
                               size_t most);

/* Checks that every group has the same bits alone as among the other groups. The op must not
 * permute rows. */
void suite_gemm_check_parts(const char *title, const suite_gemm *p, const void *result);
