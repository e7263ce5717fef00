/*
 * Times an operation by the backend in use, in turns with the rival.
 *
 * A sample is the time from the first enqueue to the finish of one call, or of several in a row
 * where one has less than 0.4 GFLOP and weights for more than twice the L2 caches. Before each
 * sample every core reads its L2 cache full of something else, and the contenders have copies of
 * the weights of their own: weights come from L3 or memory, as in a model of many layers. A pair of
 * samples in which a thread waited for a core is taken again.
 */
#pragma once

#include "bench/gemm/row.h"
#include "bench/gemm/peak.h"
#include "bench/gemm/rival.h"

typedef struct bench_setup {
    moert_device *device;
    bench_pool *pool;
    bench_rival *rival; /* or NULL */
    bench_peak peak[2]; /* of F32, of BF16 */
    size_t repeat;      /* samples of each contender */
    bool prepacked;     /* forward and dgrad read prepacked weights */
    double *patience_s; /* what is left for taking disturbed samples again */
} bench_setup;

/* Verifies both contenders' results, then times them; the rival's must be right (ERROR_NUMERIC).
 * Fills all of the row but the goal. */
moert_status bench_measure(const bench_setup *bench, const bench_problem *problem, bench_op op,
                           bench_row *row);
