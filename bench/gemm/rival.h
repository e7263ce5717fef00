/*
 * The rival of bench_gemm: sgemm of the system's OpenBLAS, if installed, called for one expert
 * after the other. The rival's GLU is a plain C loop on the same number of threads, compiled with
 * the bench.
 */
#pragma once

#include "bench/gemm/gemm.h"
#include "bench/gemm/pool.h"

typedef struct bench_rival bench_rival;

/*
 * Loads `library` ("none" for no rival). The rival gets as many threads as the pool, pinned to the
 * pool's cores. On CPUs with AVX-512 the function sets OPENBLAS_CORETYPE=SKYLAKEX, since some
 * versions of OpenBLAS do not choose their AVX-512 kernels by default. Without a rival, *rival =
 * NULL and reason[reason_bytes] says why. Errors: ERROR_MEMORY, ERROR_TOPOLOGY.
 */
moert_status bench_rival_open(const char *library, const moert_placement *placement,
                              bench_pool *pool, bench_rival **rival, char *reason,
                              size_t reason_bytes);
void bench_rival_close(bench_rival *rival);

/* The library's description: "OpenBLAS 0.3.21 ..., core SkylakeX, 2 threads". */
const char *bench_rival_describe(const bench_rival *rival);

/* Waits until the rival's threads sleep; after each call they spin for a while. */
void bench_rival_rest(void);
/* The fraction of a core that the process still uses after a call and a rest; 0 = all threads
 * sleep. */
double bench_rival_restless(const bench_rival *rival);

/* Runs the operation in float32, even if the problem's dtype is bf16; `between` is y[M,N] of the
 * GLU. An expert without rows gets a weight gradient of zeros. */
void bench_rival_run(const bench_rival *rival, const bench_problem *problem, moert_op_kind op,
                     float *result, float *between);
