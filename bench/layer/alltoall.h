/*
 * The rival of bench_exchange. Dispatch: pack rows by owner, MPI_Alltoallv, unpack rows by expert.
 * Combine: pack rows, MPI_Alltoallv, sum every token's rows. The threads of a pool pack rows in
 * host memory with plain C code. The sum uses the kernel of moert's engines, on a CPU device.
 */
#pragma once

#include "bench/gemm/pool.h"
#include "moert/device.h"
#include "moert/plan.h"

typedef struct bench_alltoall bench_alltoall;

/* Creates the rival for rows of `row_bytes` bytes with bf16 or float32 elements. For a combine,
 * row_bytes must be a multiple of 64. Device, pool and plan must outlive the rival.
 * Errors: ERROR_MEMORY, ERROR_DEVICE, ERROR_UNSUPPORTED (more rows than an int of MPI holds). */
moert_status bench_alltoall_create(moert_device *device, bench_pool *pool, const moert_plan *plan,
                                   size_t row_bytes, bool bf16, bench_alltoall **made);
void bench_alltoall_destroy(bench_alltoall *a); /* NULL is legal */

/* Sends source[T,row_bytes] to the owners of the slots. `streamed`: rows are copied by non-temporal
 * stores, else by memcpy. Collective over MPI_COMM_WORLD. */
moert_status bench_alltoall_dispatch(bench_alltoall *a, bool streamed, const void *source);
/* [plan->rows,row_bytes]: this rank's rows, written by a dispatch and read by a combine. */
void *bench_alltoall_rows(bench_alltoall *a);
/* target[T,H] = sum over k of weight[t,k] * (row of slot k), by fma from 0 in order of k.
 * Collective over MPI_COMM_WORLD. */
moert_status bench_alltoall_combine(bench_alltoall *a, bool streamed, const moert_buffer *weight,
                                    moert_buffer *target);
