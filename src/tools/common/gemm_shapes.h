/* Shapes of grouped products to measure, by name. */
#pragma once

#include <stddef.h>

typedef struct moert_gemm_shape {
    size_t experts, rows, n, k; /* rows per expert, on average */
    const char *model;          /* whose shape it is, or NULL */
} moert_gemm_shape;

/* CPU = the shapes with goals in bench_gemm; REAL = the expert layers of released models, as many
 * experts as 128 MiB of weight hold; SMALL = for the backends side by side. */
#define MOERT_GEMM_SUITE_WORDS "cpu|real|small"
typedef enum moert_gemm_suite {
    MOERT_GEMM_SUITE_CPU,
    MOERT_GEMM_SUITE_REAL,
    MOERT_GEMM_SUITE_SMALL
} moert_gemm_suite;

enum { MOERT_MOST_GEMM_SHAPES = 32 };
size_t moert_gemm_shapes(moert_gemm_suite suite, moert_gemm_shape shapes[MOERT_MOST_GEMM_SHAPES]);
