/* Rows of tokens and their experts; every rank can compute those of all tokens of a job. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Words and help of an option of type bench_skew. */
#define BENCH_SKEW_WORDS "balanced|zipf|hot|one"
#define BENCH_SKEW_HELP                                                                            \
    "load of the experts: equal; the n-th drawn 1/n as often; one takes 30 % of the slots, or as " \
    "many as K allows; one takes every token"

/* 32 random bits for a column of a token's row; such bits as a value in [-0.5, 0.5). */
uint32_t bench_word(uint64_t seed, uint64_t token, size_t column);
float bench_number(uint64_t seed, uint64_t token, size_t column);

typedef enum bench_skew { BENCH_BALANCED, BENCH_ZIPF, BENCH_HOT, BENCH_ONE } bench_skew;

const char *bench_skew_name(bench_skew skew);

/* index[tokens,topk] = distinct experts of tokens 0 to tokens - 1, a function of the seed. With
 * BENCH_ONE all slots but the first are -1. Errors: ERROR_MEMORY. */
moert_status bench_route(bench_skew skew, uint64_t seed, size_t tokens, size_t topk, size_t experts,
                         int32_t *index);
