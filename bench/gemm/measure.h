/*
 * Times an operation on the backend in use, alternating with the rival.
 *
 * A sample is the time from the first enqueue to the finish of one call. A call of less than 0.4
 * GFLOP whose weights exceed twice the L2 caches is repeated within the sample. Before each sample
 * every core fills its L2 cache with unrelated data, and each contender has a separate copy of the
 * weights. So weights come from L3 or memory, as in a model of many layers. A pair of samples is
 * repeated if a thread waited for a core.
 */
#pragma once

#include "bench/gemm/peak.h"
#include "bench/gemm/rival.h"

/* A row of bench_gemm. */
typedef struct bench_row {
    const bench_problem *problem;
    moert_op_kind op;
    const char *backend, *rival; /* rival: its description, or NULL */
    double gflops, p10, p90;     /* median and spread over the samples */
    double peak, rival_gflops;   /* 0 = unknown */
    double waited;               /* fraction of the time for which a thread lacked a core */
    double goal;                 /* the ratio to reach; 0 = none */
    size_t wrong;
} bench_row;

typedef struct bench_setup {
    moert_device *device;
    bench_pool *pool;
    bench_rival *rival; /* or NULL */
    bench_peak peak[2]; /* of F32, of BF16 */
    size_t repeat;      /* samples of each contender */
    bool prepacked;     /* forward and dgrad read prepacked weights */
    double *patience_s; /* time left to repeat disturbed samples */
} bench_setup;

/* Verifies both contenders' results, then times them. Fills the row, except its goal. ERROR_NUMERIC
 * if the rival is wrong; moert's wrong elements are counted in the row. */
moert_status bench_measure(const bench_setup *bench, const bench_problem *problem, moert_op_kind op,
                           bench_row *row);
