/* Named lists of grouped-GEMM shapes to measure. */
#pragma once

#include <stddef.h>

typedef struct moert_gemm_shape {
    size_t experts, rows, n, k; /* rows per expert, on average */
    const char *model;          /* the model that has this shape, or NULL */
} moert_gemm_shape;

/* CPU = the shapes for which bench_gemm has goals. REAL = the expert layers of released models,
 * with only as many experts as fit into 128 MiB of float32 weights (at least one). SMALL = shapes
 * for comparing all backends, including the slow reference. */
#define MOERT_GEMM_SUITE_WORDS "cpu|real|small"
typedef enum moert_gemm_suite {
    MOERT_GEMM_SUITE_CPU,
    MOERT_GEMM_SUITE_REAL,
    MOERT_GEMM_SUITE_SMALL
} moert_gemm_suite;

/* The two shapes of a model's experts: gate and up in one GEMM, and down. Uses as many of the
 * `experts` experts as fit into 128 MiB of float32 weights, at least one. */
void moert_expert_shapes(const char *model, size_t hidden, size_t intermediate, size_t experts,
                         size_t rows, moert_gemm_shape shapes[2]);

enum { MOERT_MOST_GEMM_SHAPES = 32 };
size_t moert_gemm_shapes(moert_gemm_suite suite, moert_gemm_shape shapes[MOERT_MOST_GEMM_SHAPES]);
