/*
 * The rival of bench_exchange: rows prepacked for their owners, MPI_Alltoallv, rows unpacked expert by
 * expert; and back: prepacked, MPI_Alltoallv, every token's rows summed. Plain C on host memory by the
 * threads of a pool, but for the sum, which is the kernel that moert's engines use (CPU devices).
 */
#pragma once

#include "bench/gemm/pool.h"
#include "moert/device.h"
#include "moert/plan.h"

typedef struct bench_alltoall bench_alltoall;

/* For rows of `row_bytes`, of `codes` of bf16 or of float32, which a combine takes in multiples of
 * 64 bytes. Device, pool and plan must outlive it.
 * Errors: ERROR_MEMORY, ERROR_DEVICE, ERROR_UNSUPPORTED (more rows than MPI counts). */
moert_status bench_alltoall_create(moert_device *device, bench_pool *pool, const moert_plan *plan,
                                   size_t row_bytes, bool codes, bench_alltoall **made);
void bench_alltoall_destroy(bench_alltoall *a); /* NULL is legal */

/* source[T,row_bytes] to the owners of the slots; `streamed`: rows are copied by stores that pass
 * the caches by, else by memcpy. Collective over MPI_COMM_WORLD. */
moert_status bench_alltoall_dispatch(bench_alltoall *a, bool streamed, const void *source);
/* [plan->rows,row_bytes]: where a dispatch puts this rank's rows and a combine takes them. */
void *bench_alltoall_rows(bench_alltoall *a);
/* target[T,H] = sum over k of weight[t,k] * (row of slot k), rows of H numbers, in order
 * of k by fma from 0. Collective over MPI_COMM_WORLD. */
moert_status bench_alltoall_combine(bench_alltoall *a, bool streamed, const moert_buffer *weight,
                                    moert_buffer *target);
