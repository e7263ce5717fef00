/*
 * How tokens spread over ranks and nodes, in expectation: pure arithmetic, no draws.
 *
 * A token takes K different experts of E. Balanced: any K alike, so counts are hypergeometric and
 * exact. Skewed (bench_skew, tokens.h): expert e is among the K with probability inclusion[e],
 * solved from sum(inclusion) = K, and experts are taken as independent of each other.
 */
#pragma once

#include <stddef.h>

#include "bench/common/tokens.h"

typedef struct bench_spread {
    double pairs_rank;     /* different ranks that a token's experts live on */
    double pairs_node;     /* different nodes */
    double largest_rank;   /* rows of the rank that gets most, as a multiple of the mean */
    double largest_expert; /* likewise of the expert */
} bench_spread;

/* The mean of the largest of `count` independent standard normal numbers; 0 for one. */
double bench_largest_normal(size_t count);

/*
 * Of ep ranks that share the experts, E/ep each in order, and tokens on all of them together; nodes
 * are runs of ep / nodes ranks. Errors: ERROR_MEMORY.
 */
typedef struct bench_sharing {
    bench_skew skew;
    size_t tokens, topk, experts, ep, nodes;
} bench_sharing;
moert_status bench_spread_of(const bench_sharing *of, bench_spread *spread);
