/*
 * Times an operation on the backend in use, alternating with the rival.
 *
 * A sample is the time from the first enqueue to the finish of one call. A call of less than 0.4
 * GFLOP whose weights exceed twice the L2 caches is repeated within the sample. Before each sample
 * every core fills its L2 cache with unrelated data, and moert and the rival have separate copies
 * of the weights. So the cores load the weights from L3 or memory, as in a model of many layers. A
 * pair of samples is repeated if a thread waited for a core.
 */
#pragma once

#include "bench/gemm/peak.h"
#include "bench/gemm/rival.h"

/* A row of bench_gemm. */
typedef struct bench_row {
    const bench_problem *problem;
    moert_op_kind op;
    const char *backend, *rival; /* rival: description of the rival, or NULL */
    double gflops, p10, p90;     /* median, 10th and 90th percentile of the samples' rates */
    double peak, rival_gflops;   /* 0 = unknown */
    double waited;               /* fraction of the time for which a thread lacked a core */
    double goal; /* the ratio of moert's rate to the rival's that is to be reached; 0 = no goal */
    size_t wrong;
} bench_row;

typedef struct bench_setup {
    moert_device *device;
    bench_pool *pool;
    bench_rival *rival; /* or NULL */
    bench_peak peak[2]; /* peak rates of F32 and of BF16 */
    size_t repeat;      /* number of samples of moert, and of the rival */
    bool prepacked;     /* forward and dgrad read prepacked weights */
    double *patience_s; /* seconds left to repeat disturbed samples */
} bench_setup;

/* Verifies the results of moert and of the rival, then times both. Fills the row, except its goal.
 * ERROR_NUMERIC if the rival's results are wrong; moert's wrong elements are counted in the row. */
moert_status bench_measure(const bench_setup *bench, const bench_problem *problem, moert_op_kind op,
                           bench_row *row);
