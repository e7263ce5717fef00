/* Peak rate of the cores: independent multiply-adds in registers, on all cores at once. */
#pragma once

#include "bench/gemm/pool.h"
#include "moert/formats.h"

typedef struct bench_peak {
    double gflops;           /* 0 = unknown for this processor */
    const char *instruction; /* the instruction that was measured */
} bench_peak;

/* Measures the peak rate for F32, or for BF16 products summed in float32: the best of several short
 * runs. */
bench_peak bench_peak_measure(bench_pool *pool, moert_dtype type);
