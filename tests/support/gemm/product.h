/*
 * Grouped products of any size on the device. Operands are functions of their index and never whole
 * on the host, so that an element of a result can be checked from the same functions: bit for bit
 * against the promised chain of fma (moert/ops.h), and in float64.
 */
#pragma once

#include "op/op.h"
#include "support/test.h"

typedef struct product {
    moert_op_options options;      /* a GEMM with dense rows; alpha and beta are not filled in */
    const uint32_t *ends;          /* [G] */
    const uint32_t *gather;        /* [M], with a permutation */
    bool signs;                    /* operands are -1, 0, 1, else normal with deviation 0.1 */
    size_t first_row, first_group; /* as a part of a larger product */
} product;

/* A product of operands and result of one type. */
product product_of(moert_op_kind kind, moert_dtype type, size_t groups, size_t rows, size_t n,
                   size_t k);

/* What the op makes of its result buffer, as codes, discrete weights one after the other; to be
 * freed. */
void *product_run(const char *backend, const product *p);
size_t product_bytes(const product *p);

/* `samples` elements spread over the result have the promised bits, and are within the rounding of
 * the type and absolute + relative * |value| of float64. */
void product_check(const char *title, const product *p, const void *result, size_t samples,
                   double absolute, double relative);

/* The reference backend gives the same bits, if the product has at most `most` terms. */
void product_check_backends(const char *title, const product *p, const void *result, size_t most);

/* Without a permutation: every group alone gives the bits that it has among the others. */
void product_check_parts(const char *title, const product *p, const void *result);
