/*
 * The expected spread of tokens over ranks and nodes: pure arithmetic, no random draws.
 *
 * A token has K distinct experts of E. Balanced: all choices are equally likely, so counts are
 * hypergeometric and exact. Skewed (bench_skew, tokens.h): expert e is among the K with probability
 * inclusion[e], where sum(inclusion) = K, and experts are treated as independent.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "bench/common/tokens.h"

typedef struct bench_spread {
    double pairs_rank;     /* mean number of distinct ranks that own a token's experts */
    double pairs_node;     /* distinct nodes */
    double largest_rank;   /* rows of the busiest rank, as a multiple of the mean */
    double largest_expert; /* rows of the busiest expert or clone, as a multiple of the mean */
    double clones;         /* of a rank */
} bench_spread;

/* The expected maximum of `count` independent standard normal values; 0 for one value. */
double bench_largest_normal(size_t count);

/*
 * Computes the spread of `tokens` tokens of all ranks over the `ep` ranks that share the experts.
 * Each rank has E/ep consecutive experts. With `balanced`, moert_expert_map_balance instead places
 * the experts by their expected rows, with room for `clones` clones on each rank. A node has ep /
 * nodes consecutive ranks. Errors: ERROR_USAGE, ERROR_MEMORY.
 */
typedef struct bench_sharing {
    bench_skew skew;
    size_t tokens, topk, experts, ep, nodes;
    bool balanced;
    size_t clones;
} bench_sharing;
moert_status bench_spread_of(const bench_sharing *of, bench_spread *spread);
