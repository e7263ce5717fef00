/* Chooses the experts of tokens on several ranks, and computes which rows the slots get: the oracle
 * for plans, exchanges and routes. */
#pragma once

#include "moert/plan.h"
#include "support/test.h"

enum { MOST_RANKS = 9, MOST_TOPK = 16, SHAPES = 20, MOST_ROWS = 2039 };

/* How the tokens of a shape choose their experts. ZIPF: the n-th expert is chosen about 1/n as
 * often as the first. HOT: one expert gets at least 30 % of the slots. CAPPED: rows are limited to
 * MOST_ROWS; the slots of all later rows are dropped. */
typedef enum { RANDOM, ONE_EXPERT, LAST_TWO, SOME_DROPPED, ALL_DROPPED, ZIPF, HOT, CAPPED } pattern;

typedef struct shape {
    const char *name;
    size_t experts, topk, width, tokens[MOST_RANKS];
    pattern choice;
    unsigned salt; /* seed: another value gives another payload and routing */
} shape;
extern const shape shapes[SHAPES]; /* hostile shapes, for 4 ranks */

/* The choices of a shape's tokens, which are numbered over all ranks, and the rows of their
 * slots. A slot is token * K + k. */
typedef struct routing {
    /* first token of each rank; then the number of all tokens */
    size_t topk, first_token[MOST_RANKS + 1];
    int32_t *index;       /* [T,K] the slot's expert, or -1 */
    uint32_t (*place)[2]; /* [T,K] the slot's rank and row, or MOERT_PLAN_DROPPED */
    /* each rank's first row in slot[]; then the number of all rows */
    size_t first_row[MOST_RANKS + 1];
    uint32_t *slot; /* [M] the slots, sorted by expert and then by token */
} routing;
routing route_shape(const shape *c, size_t ranks);
