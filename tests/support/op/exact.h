/*
 * Op objects in float64: the formulas of moert/ops.h on the values of the operands. The oracle uses
 * only the op's description and plain conversions from the library. A sum may have an error
 * relative to the largest sum of its row. A GLU's result may have the error that the errors of its
 * sums cause, plus OPS_GLU_ERROR times the result. A rounded result must equal a rounded value
 * within the allowed error. If a result is quantized, the plain op on the same values is checked in
 * this way, and ops_bytes_compare() compares the quantized op with the plain op.
 */
#pragma once

#include "support/op/bytes.h"

/* The expected results. `result` is y, x, d or weight[G N,K], in rows of `width` elements in the
 * order of the groups. Results that the op's kind does not have are NULL. */
typedef struct ops_exact {
    double *result, *slack; /* slack: the largest error that each element may have */
    double *c, *c_slack;
    /* the amax of each group, [G] or [G,2]; -INFINITY for a group without rows */
    double *amax;
    double *dprob, *dbias; /* the sums, followed by sums of the magnitudes of the addends */
    size_t lines, width;
    double tolerance;
} ops_exact;

/* Computes a plain op on the contents of `data` before an execute. Sums may have an error of
 * `tolerance` times the largest sum of their row; `tolerance` is 0 if no operation rounds. */
#define OPS_NEAR      5e-6
#define OPS_GLU_ERROR 4e-6
ops_exact ops_exact_of(const ops_bytes *data, double tolerance);

/* Compares the results of a plain op with the expected results, and checks that the execute has
 * changed no other byte. */
void ops_check_results(const char *title, const ops_bytes *before, const ops_bytes *got,
                       const ops_exact *want);

/* The row of x or y that holds row r of the groups; SIZE_MAX if its slot is outside the rows. */
size_t ops_row(const ops_bytes *data, const moert_op_rows *rows, size_t r);

/* An element (line, j) of the result of a plain GEMM. The element is a sum of `terms` products.
 * `line` counts from the first row of group g; `at` is the element's index in the result. */
typedef struct ops_element {
    size_t g, line, j, terms, at;
} ops_element;
/* Draws element `number` from group `number` modulo G. Returns false if the group has no elements,
 * or if the element's row is dropped. */
bool ops_draw(const ops_bytes *data, size_t number, ops_element *e);
/* Returns the operands of product t of an element. */
typedef struct ops_factors {
    float a, b;
} ops_factors;
ops_factors ops_factors_of(const ops_bytes *data, const ops_element *e, size_t t);

/* Executes `data` on `backend`; ops_exact_run_op() uses an existing op. Checks all results,
 * quantized or plain, and that no other byte has changed. The nvidia backend has no plain op on
 * float32, so its quantized results are compared with those of the portable backend. For this, the
 * sums must be exact. Returns the expected results. */
ops_exact ops_exact_run(const char *title, const char *backend, ops_bytes *data, double tolerance);
ops_exact ops_exact_run_op(const char *title, moert_op *op, ops_bytes *data, double tolerance);

/* Makes operands, executes the op on `backend` and checks the results. The operands have OPS_EXACT
 * values if `tolerance` is 0, otherwise OPS_SPREAD values. */
void ops_check_on(const char *backend, const char *title, const moert_op_options *options,
                  const uint32_t *ends, double tolerance);
/* Calls ops_check_on() for each of `backends`. */
void ops_check(const char *title, const moert_op_options *options, const uint32_t *ends,
               double tolerance);
