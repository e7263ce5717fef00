/* The ratios to the rival that are asked of bench_gemm's suite of shapes. */
#ifndef BENCH_SUITE_H
#define BENCH_SUITE_H

#include "gemm.h"

/* The ratio that the suite CPU asks of a row; 0 = none. */
double bench_suite_goal(bench_op op, moert_number type, bool ragged, size_t rows);

#endif
