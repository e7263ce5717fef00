/* GLU and dGLU ops of all forms, orders and layouts of gate and up, and the GLU in float64. */
#pragma once

#include "support/op/run.h"

/* Groups that are empty, have one row or many, and rows past the last end. */
enum { OPS_GLU_GROUPS = 5, OPS_GLU_ROWS = 44, OPS_GLU_CASES = 48 };
extern const uint32_t ops_glu_ends[OPS_GLU_GROUPS];

/* Case i of OPS_GLU_CASES. They cover every form, order and layout; dtypes and options vary with
 * i. */
moert_op_options ops_glu_case(moert_op_kind kind, size_t i);

/* An op with one row, one gate and one up: K = 1 (GLU) or N = 1 (dGLU). */
moert_op_options ops_glu_one(moert_op_kind kind, moert_glu_form form);

/* The column of the gate or up that result j depends on; and the group of row r. */
size_t ops_glu_column(const moert_op *op, size_t j, bool up);
size_t ops_glu_group(size_t r);

/* The GLU of one element, without prob. */
double ops_glu_value(moert_glu_form form, double gate, double up);

/* Element i of an optional buffer; 1 if the op has no such buffer. */
double ops_glu_operand(const ops_data *data, moert_op_buffer which, size_t i);

/* Checks a value within one rounding of the dtype, plus float32 rounding of intermediate values of
 * magnitude `scale`. */
void assert_rounded(const char *title, moert_dtype type, double got, double want, double scale);
