/* GLU and dGLU ops of all forms, orders and layouts of gate and up, and the GLU in float64. */
#pragma once

#include "support/op/run.h"

/* Groups that are empty, have one row or many, and rows past the last end. */
enum { OPS_GLU_GROUPS = 5, OPS_GLU_ROWS = 44, OPS_GLU_CASES = 48 };
extern const uint32_t ops_glu_ends[OPS_GLU_GROUPS];

/* Returns case i of OPS_GLU_CASES. The cases cover every form, order and layout of gate and up;
 * dtypes and options vary with i. */
moert_op_options ops_glu_case(moert_op_kind kind, size_t i);

/* An op with one row, one gate and one up: K = 1 (GLU) or N = 1 (dGLU). */
moert_op_options ops_glu_one(moert_op_kind kind, moert_glu_form form);

/* ops_glu_column() returns the column of the gate or the up on which result j depends.
 * ops_glu_group() returns the group of row r. */
size_t ops_glu_column(const moert_op *op, size_t j, bool up);
size_t ops_glu_group(size_t r);

/* Returns the GLU of one element, without prob. */
double ops_glu_value(moert_glu_form form, double gate, double up);

/* Returns element i of an optional buffer, or 1 if the op has no such buffer. */
double ops_glu_operand(const ops_data *data, moert_op_buffer which, size_t i);

/* Checks that `got` differs from `want` by at most one rounding of the dtype, plus float32 rounding
 * of intermediate values of magnitude `scale`. */
void assert_rounded(const char *title, moert_dtype type, double got, double want, double scale);
