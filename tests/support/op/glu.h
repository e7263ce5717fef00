/* GLU and dGLU ops in their forms, orders and interleavings, and the GLU in float64. */
#pragma once

#include "support/op/run.h"

/* Groups: empty, one row, many; rows past the last end. */
enum { OPS_GLU_GROUPS = 5, OPS_GLU_ROWS = 44, OPS_GLU_CASES = 48 };
extern const uint32_t ops_glu_ends[OPS_GLU_GROUPS];

/* Case i below OPS_GLU_CASES: every form, order and layout; types and switches go along. */
moert_op_options ops_glu_case(moert_op_kind kind, size_t i);

/* One row, one gate, one up: K = 1 (GLU) or N = 1 (dGLU). */
moert_op_options ops_glu_one(moert_op_kind kind, moert_glu_form form);

/* The column of gate or up of result j, and the group of a row. */
size_t ops_glu_column(const moert_op *op, size_t j, bool up);
size_t ops_glu_group(size_t r);

/* Without prob. */
double ops_glu_value(moert_glu_form form, double gate, double up);

/* Element i of a buffer of operands, 1 if there is none. */
double ops_glu_operand(const ops_data *data, moert_op_buffer which, size_t i);

/* Within the rounding of the type, and float32's on the way at magnitude `scale`. */
void assert_rounded(const char *title, moert_dtype type, double got, double want, double scale);
