/* The contents of the rows that bench_exchange moves: a function of the token's global index. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moert/plan.h"

/* The words of bench_dtype, for options. */
#define BENCH_DTYPE_WORDS "f32|bf16|mxfp8"
typedef enum bench_dtype { BENCH_F32, BENCH_BF16, BENCH_MXFP8 } bench_dtype;

/* Rows of `hidden` elements. MXFP8 rows are random bits, and have the bytes of payload plus
 * scales. */
typedef struct bench_payload {
    uint64_t seed;
    bench_dtype dtype;
    size_t hidden; /* even */
    float slack;   /* tolerance of sums, relative to the sum of magnitudes; 0 = equal bits */
} bench_payload;

size_t bench_payload_width(const bench_payload *p); /* length of a row in floats */
bool bench_payload_sums(const bench_payload *p); /* whether a combine can sum rows of this dtype */

/* Fills rows[tokens,width] of the tokens from `first` on. */
void bench_payload_fill(const bench_payload *p, uint64_t first, size_t tokens, float *rows);
/* Counts the wrong elements of rows[count,stride], which should be those of the tokens
 * token_of[count]. */
size_t bench_payload_wrong_rows(const bench_payload *p, const uint64_t *token_of, size_t count,
                                const float *rows, size_t stride);
/* Counts the wrong elements of sums[tokens,hidden]. The right sum runs over the token's slots in
 * order, except dropped slots, and adds weight[tokens,topk] times the token's row. A sum may differ
 * from the right sum by the slack. */
size_t bench_payload_wrong_sums(const bench_payload *p, uint64_t first, const moert_plan *plan,
                                const float *weight, const float *sums);
