/* What the files of bench_memory's kernels share: see memory.h for the three functions of each. */
#ifndef BENCH_MEMORY_CASES_H
#define BENCH_MEMORY_CASES_H

#include "memory.h"

size_t bench_pick(double chosen, size_t count);
moert_status bench_read(const moert_buffer *buffer, size_t index, double *x); /* a float */

double bench_glu_bytes(const bench_sizes *s);
moert_status bench_glu_run(const bench_memory *b);
moert_status bench_glu_check(const bench_memory *b, double chosen, double *got, double *want);
double bench_dglu_bytes(const bench_sizes *s);
moert_status bench_dglu_run(const bench_memory *b);
moert_status bench_dglu_check(const bench_memory *b, double chosen, double *got, double *want);
double bench_exchange_bytes(const bench_sizes *s);
moert_status bench_dispatch_run(const bench_memory *b);
moert_status bench_dispatch_check(const bench_memory *b, double chosen, double *got, double *want);
moert_status bench_combine_run(const bench_memory *b);
moert_status bench_combine_check(const bench_memory *b, double chosen, double *got, double *want);
double bench_permute_bytes(const bench_sizes *s);
moert_status bench_permute_run(const bench_memory *b);
moert_status bench_permute_check(const bench_memory *b, double chosen, double *got, double *want);
double bench_router_bytes(const bench_sizes *s);
moert_status bench_router_run(const bench_memory *b);
moert_status bench_router_check(const bench_memory *b, double chosen, double *got, double *want);
double bench_quantize_bytes(const bench_sizes *s);
moert_status bench_quantize_run(const bench_memory *b);
moert_status bench_dequantize_run(const bench_memory *b);
moert_status bench_quantize_check(const bench_memory *b, double chosen, double *got, double *want);
moert_status bench_dequantize_check(const bench_memory *b, double chosen, double *got,
                                    double *want);

#endif
