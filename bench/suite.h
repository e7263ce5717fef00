/* The shapes that bench_gemm runs by name, and the ratios to the rival that are asked of them. */
#ifndef BENCH_SUITE_H
#define BENCH_SUITE_H

#include "gemm.h"

enum { BENCH_MOST_SHAPES = 32 };

/* X(NAME, text): CPU = the shapes with goals; REAL = the expert layers of released models, as many
 * experts as 128 MiB of weight hold; SMALL = for the backends side by side. */
#define BENCH_SUITE_TABLE(X) X(CPU, "cpu") X(REAL, "real") X(SMALL, "small")
typedef enum bench_suite {
#define BENCH_SUITE_ENUM(name, text) BENCH_SUITE_##name,
    BENCH_SUITE_TABLE(BENCH_SUITE_ENUM)
#undef BENCH_SUITE_ENUM
} bench_suite;

size_t bench_suite_shapes(bench_suite suite, bench_shape shapes[BENCH_MOST_SHAPES]);

/* Experts of a row of a shape: in a ragged one at least five, so that one of them is empty; 0 where
 * weights of five would be more than 640 MiB, and there is no ragged row. */
size_t bench_suite_experts(const bench_shape *shape, bool ragged);

/* The ratio that the suite CPU asks of a row; 0 = none. */
double bench_suite_goal(bench_op op, moert_number type, bool ragged, size_t rows);

#endif
