/*
 * Op objects in float64: the formulas of moert/ops.h on the values of the operands, and a check of
 * results byte by byte. Only the op's description and plain conversions come from the library. A
 * sum may have an error relative to the largest sum of its row. A GLU's result may have the error
 * that this causes, plus 1e-5 of itself. Each byte (element, scale, rounded value) must be that of
 * a value within the error. Therefore only one byte is right, except near a rounding boundary.
 */
#pragma once

#include "support/op/quantized.h"

/* The expected results, in rows of `width` elements: y, x, d, or weight[G N,K]. A result that the
 * kind does not have is NULL. */
typedef struct ops_exact {
    double *result, *slack; /* slack: the error that each element may have */
    double *c, *c_slack;
    double *amax;          /* [G] or [G,2] */
    double *dprob, *dbias; /* the sums, followed by sums of the magnitudes of the addends */
    size_t lines, width;
    double tolerance;
} ops_exact;

/* Computes a plain op that ops_bytes_fill() has returned. The op must not permute or accumulate,
 * and only a dGLU may have beta. Sums may have an error of `tolerance` times the largest sum of
 * their row; `tolerance` is 0 if no operation rounds. */
#define OPS_NEAR 5e-6
ops_exact ops_exact_of(const ops_bytes *plain, double tolerance);

/* Checks all results of an executed op, quantized or plain, and that rows past the last end are
 * unchanged. Before the op, dprob, dbias and amax must have been 0. */
void ops_exact_check(const char *title, const ops_bytes *got, const ops_exact *want);

/* Fills `data`, executes it on `backend` and checks it; returns the expected results. */
ops_exact ops_exact_run(const char *title, const char *backend, ops_bytes *data, double tolerance);
