/*
 * Replaces the router's logits by pseudo-random numbers, so that all experts get nearly equal
 * numbers of rows.
 *
 *   logits[t,e] = hash(bits of logits[t,e], e), uniform in [-1, 1)   where logits[t,e] is finite
 *
 * logits[T,E]. The hash is the finalizer of MurmurHash3; the result has its upper 24 bits. The hash
 * does not depend on t, so a token has the same choice on any rank. A row group owns TOKENS tokens.
 * Deterministic; no local memory.
 */
#include "args/router.h"

#define TOKENS BY_FORM(MOERT_ROUTER_PADDING_TOKENS, 1)

static inline float hash(uint bits, uint expert) {
    uint h = bits ^ expert * 0x9E3779B9u;
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    h ^= h >> 16;
    return (float)((int)(h >> 8) - 0x800000) * 0x1p-23f;
}

KERNEL void router_balance(global float *logits, moert_router_args args) {
    const ulong first = get_group_id(0) * (ulong)TOKENS, end = min(first + TOKENS, args.tokens);
    for (ulong t = first; t < end; t++)
        for (int e = item_index(); e < args.experts; e += MOERT_ITEMS) {
            const float x = logits[t * args.experts + e];
            if (isfinite(x))
                logits[t * args.experts + e] = hash(as_uint(x), (uint)e);
        }
}
