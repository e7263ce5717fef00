/* The contents of the rows that bench_exchange moves: a function of the token's global index. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moert/plan.h"

/* Options: the words of bench_dtype. */
#define BENCH_DTYPE_WORDS "f32|bf16|mxfp8"
typedef enum bench_dtype { BENCH_F32, BENCH_BF16, BENCH_MXFP8 } bench_dtype;

/* Rows of `hidden` elements. MXFP8 rows are random bits, as long as payload and scales. */
typedef struct bench_payload {
    uint64_t seed;
    bench_dtype dtype;
    size_t hidden; /* even */
    float slack;   /* tolerance of sums, relative to the sum of magnitudes; 0 = equal bits */
} bench_payload;

size_t bench_payload_width(const bench_payload *p); /* of a row, in floats */
bool bench_payload_sums(const bench_payload *p);    /* whether rows can be summed */

/* Fills rows[tokens,width] of the tokens from `first` on. */
void bench_payload_fill(const bench_payload *p, uint64_t first, size_t tokens, float *rows);
/* Counts the wrong elements of rows[count,stride], which should be those of the tokens
 * token_of[count]. */
size_t bench_payload_wrong_rows(const bench_payload *p, const uint64_t *token_of, size_t count,
                                const float *rows, size_t stride);
/* Counts the wrong elements of sums[tokens,hidden]. Right, within the slack: the token's row,
 * weighted by weight[tokens,topk] and summed over its slots in order, without slots that the plan
 * drops. */
size_t bench_payload_wrong_sums(const bench_payload *p, uint64_t first, const moert_plan *plan,
                                const float *weight, const float *sums);
