/* The shapes, and their routing (which slot lies in which row) by brute force. */
#include "support/exchange/routing.h"

#include "base/rng.h"

const shape shapes[SHAPES] = {
    {"even", 8, 2, 64, {16, 16, 16, 16}, RANDOM, 0},
    {"uneven tokens", 8, 2, 64, {33, 1, 70, 5}, RANDOM, 1},
    {"rank 0 empty", 8, 2, 32, {0, 9, 0, 3}, RANDOM, 2},
    {"other ranks empty", 8, 2, 32, {13, 0, 0, 0}, RANDOM, 3},
    {"no tokens at all", 8, 2, 32, {0, 0, 0, 0}, RANDOM, 4},
    {"one token", 4, 2, 16, {1, 0, 0, 0}, RANDOM, 5},
    {"all to one expert", 8, 1, 48, {20, 30, 10, 7}, ONE_EXPERT, 6},
    {"every expert chosen", 7, 7, 40, {9, 5, 6, 7}, RANDOM, 7},
    {"many experts per token", 16, 11, 64, {9, 5, 0, 7}, SOME_DROPPED, 8},
    {"uneven experts", 13, 3, 64, {21, 20, 19, 18}, RANDOM, 9},
    {"fewer experts than ranks", 2, 1, 16, {5, 6, 7, 8}, RANDOM, 10},
    {"some slots dropped", 8, 4, 64, {25, 17, 40, 3}, SOME_DROPPED, 11},
    {"all slots dropped", 8, 2, 64, {5, 4, 3, 2}, ALL_DROPPED, 12},
    {"by Zipf's law", 16, 4, 48, {120, 64, 90, 77}, ZIPF, 17},
    {"one takes 30 %", 16, 2, 48, {120, 64, 90, 77}, HOT, 18},
    {"one of many takes all", 16, 1, 48, {300, 1, 200, 90}, ONE_EXPERT, 19},
    {"width 1", 8, 2, 1, {19, 17, 3, 20}, RANDOM, 13},
    {"width 15", 8, 2, 15, {19, 17, 3, 20}, RANDOM, 14},
    {"width 17", 8, 2, 17, {19, 17, 3, 20}, RANDOM, 15},
    {"width 100", 8, 3, 100, {19, 17, 3, 20}, SOME_DROPPED, 16},
};

/* Draws K different experts for a token from a deck of all experts, without replacement. */
static void choose(const shape *c, size_t token, int32_t *deck, int32_t *slot) {
    for (size_t e = 0; e < c->experts; e++)
        deck[e] = (int32_t)e;
    for (size_t k = 0; k < c->topk; k++) {
        const double u = moert_rng_uniform(c->salt, token, k);
        size_t pick = k + (size_t)(u * (double)(c->experts - k));
        if (c->choice == ONE_EXPERT)
            pick = c->experts - 1;
        else if (c->choice == LAST_TWO && k < 2)
            pick = c->experts - 1 - k;
        else if (c->choice == ZIPF)
            pick = k + (size_t)(pow((double)(c->experts - k + 1), u) - 1.0);
        else if (c->choice == HOT && k == 0 && u < 0.3 * (double)c->topk)
            pick = 0;
        const int32_t taken = deck[pick];
        deck[pick] = deck[k];
        deck[k] = taken;
        slot[k] = c->choice == ALL_DROPPED || (c->choice == SOME_DROPPED && u < 0.4) ? -1 : taken;
    }
}

routing route_shape(const shape *c, size_t ranks) {
    routing r = {.topk = c->topk};
    for (size_t rank = 0; rank < ranks; rank++)
        r.first_token[rank + 1] = r.first_token[rank] + c->tokens[rank];
    const size_t tokens = r.first_token[ranks], slots = tokens * c->topk;
    int32_t *deck = test_alloc(c->experts * sizeof *deck);
    r.index = test_alloc(slots * sizeof *r.index);
    r.place = test_alloc(slots * sizeof *r.place);
    r.slot = test_alloc(slots * sizeof *r.slot);
    memset(r.place, 0xFF, slots * sizeof *r.place);
    for (size_t token = 0; token < tokens; token++)
        choose(c, token, deck, r.index + token * c->topk);
    size_t rows = 0;
    for (size_t rank = 0; rank < ranks; rank++) {
        size_t first, count;
        moert_plan_experts(c->experts, ranks, rank, &first, &count);
        r.first_row[rank] = rows;
        for (size_t e = first; e < first + count; e++)
            for (size_t s = 0; s < slots; s++) {
                if (r.index[s] != (int32_t)e)
                    continue;
                if (c->choice == CAPPED && rows == MOST_ROWS) {
                    r.index[s] = -1;
                    continue;
                }
                r.place[s][0] = (uint32_t)rank;
                r.place[s][1] = (uint32_t)(rows - r.first_row[rank]);
                r.slot[rows++] = (uint32_t)s;
            }
    }
    r.first_row[ranks] = rows;
    return r;
}
