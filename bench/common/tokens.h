/* Random rows and experts for tokens. Every rank can compute the rows and experts of all tokens of
 * a job. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Forms and help of an option that bench_skew_read reads. */
#define BENCH_SKEW_FORMS "balanced|zipf[:S]|hot[:P]|one"
#define BENCH_SKEW_HELP                                                                            \
    BENCH_SKEW_FORMS ": load of the experts. Equal; the n-th drawn 1/n^S as often (S 1); one "     \
                     "takes P % of the slots, or as many as K allows (P 30); one takes every "     \
                     "token"

/* Return 32 random bits for a column of a token's row, and these bits as a value in [-0.5, 0.5). */
uint32_t bench_word(uint64_t seed, uint64_t token, size_t column);
float bench_number(uint64_t seed, uint64_t token, size_t column);

typedef enum bench_skew_kind { BENCH_BALANCED, BENCH_ZIPF, BENCH_HOT, BENCH_ONE } bench_skew_kind;

/* How the experts of tokens are drawn. */
typedef struct bench_skew {
    bench_skew_kind kind;
    double amount; /* ZIPF: the exponent; HOT: the hot expert's share of the slots */
} bench_skew;

/* Parses `text`; ERROR_USAGE if it has none of the BENCH_SKEW_FORMS. */
moert_status bench_skew_read(const char *text, bench_skew *skew);

/* index[tokens,topk] = distinct experts of tokens 0 to tokens - 1, which depend only on the
 * arguments. With BENCH_ONE all slots but the first are -1. Errors: ERROR_MEMORY. */
moert_status bench_route(bench_skew skew, uint64_t seed, size_t tokens, size_t topk, size_t experts,
                         int32_t *index);
