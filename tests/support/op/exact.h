/*
 * Op objects in float64: the formulas of moert/ops.h on the values of the operands, and what comes
 * of them byte by byte. Shares with the library the description of the op and the conversions of
 * plain numbers.
 *
 * A sum may be off by a part of the largest in its row, and what a GLU makes of it by as much as
 * that changes it, and by 1e-5 of itself. Bytes (elements, scales, rounded numbers) must be those
 * of a value that is not further away: a single byte, except next to a rounding boundary.
 */
#pragma once

#include "support/op/quantized.h"

/* Results in rows of `width`: y, x, d, or weight[G N,K]; what the kind does not have is NULL. */
typedef struct ops_exact {
    double *result, *slack; /* and how far each may be off */
    double *c, *c_slack;
    double *amax;          /* [G] or [G,2] */
    double *dprob, *dbias; /* what is added, with the sum of the terms' magnitudes behind */
    size_t lines, width;
    double tolerance;
} ops_exact;

/* Of a plain op as ops_bytes_fill gives it, without a permutation, beta or old values. Sums are
 * within `tolerance` of the largest in their row; 0 where nothing is rounded. */
#define OPS_NEAR 5e-6
ops_exact ops_exact_of(const ops_bytes *plain, double tolerance);

/* What an execute left in `got`, quantized or plain: each result is right, rows past the last end
 * are untouched. dprob and dbias began at 0, amax below. */
void ops_exact_check(const char *title, const ops_bytes *got, const ops_exact *want);

/* Fills `data` and executes it by `backend`, and checks it so; what it must be. */
ops_exact ops_exact_run(const char *title, const char *backend, ops_bytes *data, double tolerance);
