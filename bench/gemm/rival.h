/*
 * The rival: OpenBLAS's sgemm, called for one expert after the other, from the shared library that
 * a system has, if it has one. Its GLU is a plain loop in C over the same threads, compiled with
 * the bench.
 */
#pragma once

#include "bench/gemm/gemm.h"
#include "bench/gemm/pool.h"

typedef struct bench_rival bench_rival;

/*
 * Loads `library` ("none" for no rival), with as many threads as the pool, pinned to its cores. On
 * a processor with AVX-512 it is told to use its kernels for that (OPENBLAS_CORETYPE=SKYLAKEX),
 * which some versions do not choose by themselves. *rival = NULL with a reason[reason_bytes] when
 * there is none. Errors: ERROR_MEMORY, ERROR_TOPOLOGY.
 */
moert_status bench_rival_open(const char *library, const moert_placement *placement,
                              bench_pool *pool, bench_rival **rival, char *reason,
                              size_t reason_bytes);
void bench_rival_close(bench_rival *rival);

/* "OpenBLAS 0.3.21 ..., core SkylakeX, 2 threads": what the library says of itself. */
const char *bench_rival_describe(const bench_rival *rival);

/* Waits until a rival's threads, which spin after a call, have gone to sleep. */
void bench_rival_rest(void);
/* The share of one core that the process still uses after a call and a rest; 0 = all sleep. */
double bench_rival_restless(const bench_rival *rival);

/* The operation in float32, whatever the problem's type; `between`, y[M,N], is for the GLU. An
 * expert without rows gets a weight gradient of zeros. */
void bench_rival_run(const bench_rival *rival, const bench_problem *problem, bench_op op,
                     float *result, float *between);
