/*
 * Included by topk.h and row.h: the score of a group of experts.
 *
 * Required: MOST_EXPERTS.
 */
#include "router/scores.h"

#if MOERT_ITEMS == 1
#define ROW private
#else
#define ROW local
#endif

/* The sum of the `best` largest selection scores of n keys, added from the smallest up. The sum is
 * no NaN unless a score is infinite. */
static float sum_best(ROW const uint *key, int n, int best) {
    uint top[MOST_EXPERTS / 2]; /* descending */
    float sum = 0.0f;
    for (int i = 0; i < best; i++)
        top[i] = 0;
    for (int e = 0; e < n; e++) {
        uint falling = key[e];
        for (int i = 0; i < best && falling > top[best - 1]; i++) {
            const uint higher = max(top[i], falling);
            falling = min(top[i], falling);
            top[i] = higher;
        }
    }
    IN_ORDER_FOR(int i = best; i > 0; i--)
        sum += key_value(top[i - 1]);
    return sum;
}
