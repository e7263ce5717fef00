/* What is in the rows that bench_exchange moves: known from the global number of a token. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "moert/plan.h"

/* Options: the words of bench_dtype. */
#define BENCH_DTYPE_WORDS "f32|bf16|mxfp8"
typedef enum bench_dtype { BENCH_F32, BENCH_BF16, BENCH_MXFP8 } bench_dtype;

/* Rows of `hidden` numbers. Those of MXFP8 are any bits, as long as payload and scales are. */
typedef struct bench_payload {
    uint64_t seed;
    bench_dtype dtype;
    size_t hidden; /* even */
    float slack;   /* of sums in another order, by the terms' magnitudes; 0: the same bits */
} bench_payload;

const char *bench_dtype_name(bench_dtype dtype);
size_t bench_payload_width(const bench_payload *p); /* of a row, in floats */
bool bench_payload_sums(const bench_payload *p);    /* its numbers can be added */

/* rows[tokens,width] of the tokens from `first` on. */
void bench_payload_fill(const bench_payload *p, uint64_t first, size_t tokens, float *rows);
/* Elements that are not those of rows[count,stride] of the tokens token_of[count]. */
size_t bench_payload_wrong_rows(const bench_payload *p, const uint64_t *token_of, size_t count,
                                const float *rows, size_t stride);
/* Elements of sums[tokens,hidden] that are not the weighted sums over a token's slots, in order, of
 * its own row, within the slack; slots of weight[tokens,topk] of a plan's tokens that are dropped
 * take no part. */
size_t bench_payload_wrong_sums(const bench_payload *p, uint64_t first, const moert_plan *plan,
                                const float *weight, const float *sums);
