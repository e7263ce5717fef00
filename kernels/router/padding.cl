/*
 * Clears the router's results for padding: for tokens with a negative number in token[T].
 *
 *   scores[t,:] = 0, index[t,:] = -1, weight[t,:] = 0, lse[t] = 0   for each t with token[t] < 0
 *
 * token int32 [T], scores[T,E], index int32 [T,K], weight[T,K], lse[T]. A row group owns TOKENS
 * tokens. Deterministic; no local memory.
 */
#include "args/router.h"

#define TOKENS BY_FORM(MOERT_ROUTER_PADDING_TOKENS, 1)

KERNEL void router_skip(global const int *restrict token, global float *restrict scores,
                        global int *restrict index, global float *restrict weight,
                        global float *restrict lse, moert_router_args args) {
    const ulong first = get_group_id(0) * (ulong)TOKENS, end = min(first + TOKENS, args.tokens);
    for (ulong t = first; t < end; t++) {
        if (token[t] >= 0)
            continue;
        for (int e = item_index(); e < args.experts; e += MOERT_ITEMS)
            scores[t * args.experts + e] = 0.0f;
        for (int k = item_index(); k < args.topk; k += MOERT_ITEMS) {
            index[t * args.topk + k] = -1;
            weight[t * args.topk + k] = 0.0f;
        }
        if (is_first_item())
            lse[t] = 0.0f;
    }
}
