/* What the files of bench_memory's kernels share: see memory.h for the three functions of each. */
#pragma once

#include "bench/memory/memory.h"

size_t bench_pick(double chosen, size_t count);
moert_status bench_read(const moert_buffer *buffer, size_t index, double *x); /* a float */

/* A number of this type. */
moert_status bench_read_as(const moert_buffer *buffer, moert_number type, size_t index, double *x);

#define BENCH_CASE(name)                                                                           \
    double bench_##name##_bytes(const bench_sizes *s);                                             \
    moert_status bench_##name##_run(const bench_memory *b);                                        \
    moert_status bench_##name##_check(const bench_memory *b, double chosen, double *got,           \
                                      double *want);
BENCH_CASE(norm)
BENCH_CASE(norm_backward)
BENCH_CASE(glu)
BENCH_CASE(dglu)
BENCH_CASE(permute)
BENCH_CASE(router)
BENCH_CASE(router_backward)
BENCH_CASE(quantize)
#undef BENCH_CASE
moert_status bench_norm_backward_begin(const bench_memory *b);
moert_status bench_quantize_begin(const bench_memory *b);
moert_status bench_dequantize_begin(const bench_memory *b);
moert_status bench_dequantize_run(const bench_memory *b);
moert_status bench_dequantize_check(const bench_memory *b, double chosen, double *got,
                                    double *want);
double bench_exchange_bytes(const bench_sizes *s);
moert_status bench_dispatch_run(const bench_memory *b);
moert_status bench_dispatch_check(const bench_memory *b, double chosen, double *got, double *want);
moert_status bench_combine_run(const bench_memory *b);
moert_status bench_combine_check(const bench_memory *b, double chosen, double *got, double *want);
