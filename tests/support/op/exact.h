/*
 * Op objects in float64: the formulas of moert/ops.h on the values of the operands, and a check of
 * results byte by byte. From the library come only the op's description and plain conversions.
 *
 * A sum may have an error relative to the largest sum of its row. The result of a GLU may change by
 * as much as that error changes it, plus 1e-5 of itself. Each byte (element, scale, rounded value)
 * must be that of a value within the error. So only one byte is right, except near a rounding
 * boundary.
 */
#pragma once

#include "support/op/quantized.h"

/* Expected results in rows of `width`: y, x, d, or weight[G N,K]. NULL if the kind has no such
 * result. */
typedef struct ops_exact {
    double *result, *slack; /* slack: the error that each element may have */
    double *c, *c_slack;
    double *amax;          /* [G] or [G,2] */
    double *dprob, *dbias; /* sums, followed by the sums of the addends' magnitudes */
    size_t lines, width;
    double tolerance;
} ops_exact;

/* Computes a plain op, as ops_bytes_fill() returns it, without a permutation and accumulation; beta
 * only for a dGLU. Sums may have an error of `tolerance` times the largest in their row; 0 if no
 * operation rounds. */
#define OPS_NEAR 5e-6
ops_exact ops_exact_of(const ops_bytes *plain, double tolerance);

/* Checks all results of an executed op, quantized or plain, and that rows past the last end are
 * untouched. dprob, dbias and amax must have begun at 0. */
void ops_exact_check(const char *title, const ops_bytes *got, const ops_exact *want);

/* Fills `data`, executes it on `backend` and checks it; returns the expected results. */
ops_exact ops_exact_run(const char *title, const char *backend, ops_bytes *data, double tolerance);
