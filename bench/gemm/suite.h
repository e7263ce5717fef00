/* The ratios to the rival that are asked of bench_gemm's suite of shapes. */
#pragma once

#include "bench/gemm/gemm.h"

/* Experts of a row of a shape: in a ragged one at least five, so that one of them is empty; 0 where
 * weights of five would be more than 640 MiB, and there is no ragged row. */
size_t bench_suite_experts(const bench_shape *shape, bool ragged);

/* The ratio that the suite CPU asks of a row; 0 = none. */
double bench_suite_goal(bench_op op, moert_number type, bool ragged, size_t rows);
