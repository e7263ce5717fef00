/* What the tests of ops with quantised operands describe alike. */
#pragma once

#include "support/op/quantized.h"

/* A product whose two factors are as `factor`, in blocks along what is summed over; its result is
 * float32. */
moert_op_options ops_product(moert_op_kind kind, moert_operand factor, size_t groups, size_t rows,
                             size_t n, size_t k);

/* Two ops that differ in how weights are given hold the same bytes of everything else. */
void ops_assert_same_results(const char *title, const ops_bytes *got, const ops_bytes *want);
