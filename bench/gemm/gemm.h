/*
 * The operations of bench_gemm, and a problem: a shape with its data.
 *
 * Rows of x[M,K] and y[M,N] belong to experts with weight[E,N,K]:
 *   fprop y = x weight^T, glu h[M,N/2] = silu(gate) * up with [gate | up] = y, dgrad x = y weight,
 *   wgrad weight = y^T x
 * FLOPs of each operation: 2 M N K, where M is the number of rows of all experts. The GLU's
 * exponentials are not included.
 */
#pragma once

#include "bench/gemm/check.h"
#include "gemm/gemm.h"
#include "tools/common/gemm_shapes.h"

const char *bench_op_name(moert_op_kind op);

typedef moert_gemm_shape bench_shape;

typedef struct bench_problem {
    bench_shape shape;
    moert_dtype type; /* F32 or BF16: dtype to which the operands are rounded */
    bool ragged;
    uint32_t *ends;        /* [E] */
    size_t rows;           /* M */
    float *x, *y, *weight; /* values before rounding, uniform in [-1, 1) */
    moert_buffer *ends_buffer, *x_buffer, *y_buffer, *weight_buffer;
} bench_problem;

/* Creates a problem whose groups are balanced or ragged; M is the same in both cases. The seed
 * determines the sizes of ragged groups and the values of the operands. */
moert_status bench_problem_create(moert_device *device, const bench_shape *shape, moert_dtype type,
                                  bool ragged, uint64_t seed, bench_problem **problem);
void bench_problem_destroy(bench_problem *problem);
double bench_problem_flops(const bench_problem *problem); /* FLOPs of one operation */

/* An operation on a problem, prepared for the backend in use. `gemm` may run any number of
 * times. */
typedef struct bench_run {
    const bench_problem *problem;
    moert_op_kind op;
    moert_gemm gemm;
    moert_panels *panels;
    moert_buffer *result, *between; /* between: the GEMM's result y, only for the GLU */
} bench_run;

/* prepacked: forward and dgrad read prepacked weights if the backend has them. */
moert_status bench_run_create(const bench_problem *problem, moert_op_kind op, bool prepacked,
                              bench_run *run);
void bench_run_destroy(bench_run *run);
size_t bench_result_count(const bench_problem *problem,
                          moert_op_kind op); /* number of elements of the result */

/* Compares the result of an operation with float64 sums over the rounded operands. *wrong is the
 * number of wrong elements, as bench_count_wrong() defines them (gemm/check.h). */
moert_status bench_problem_check(const bench_problem *problem, moert_op_kind op,
                                 const moert_buffer *buffer, const float *memory, size_t *wrong);
