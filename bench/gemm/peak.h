/* The most that the cores can do: independent multiply-adds on registers, on all of them at
 * once. */
#pragma once

#include "bench/gemm/pool.h"
#include "moert/formats.h"

typedef struct bench_peak {
    double gflops;           /* 0 = not known for this processor */
    const char *instruction; /* that was measured */
} bench_peak;

/* Of products of F32, or of BF16 summed in float32; best of some short runs. */
bench_peak bench_peak_measure(bench_pool *pool, moert_dtype type);
