/*
 * Sums of columns that the ranks of a host have staged in their windows (src/exchange/peers.h).
 *
 *   sum_nodes   target[n] (+)= the root of the tree (base/tree.h) over rows [nodes][n]. Row i is in
 *               the window of rank node[i].rank, from float node[i].at on. Rows come from left to
 *               right. After row i, the last node[i].joins + 1 sums become one, two at a time from
 *               the right: left + right.
 *
 *   windows [ranks]   raw addresses at which this device finds the window of each rank
 *
 * Without nodes the sum is 0; one node is copied. A row group owns COLUMNS columns. No local
 * memory. Deterministic: it makes exactly the tree's additions for each element.
 */
#include "args/exchange.h"

#define COLUMNS (MOERT_ITEMS == 1 ? 1024ul : 512ul)

KERNEL void sum_nodes(global const ulong *windows, global float *target, moert_peers_args args) {
    const ulong begin = get_group_id(0) * COLUMNS, end = min(begin + COLUMNS, args.n);
    global float *to = target + args.target;
    for (ulong i = begin; i < end; i += VEC) {
        const int left = (int)min((ulong)VEC, end - i);
        vec stack[MOERT_PEERS_DEPTH];
        uint count = 0;
        stack[0] = (vec)0.0f;
        for (uint node = 0; node < args.nodes; node++) {
            global const float *row = (global const float *)(size_t)windows[args.node[node].rank];
            vec sum = load_part(row + args.node[node].at + i, left);
            for (uint joins = args.node[node].joins; joins > 0; joins--)
                sum = stack[--count] + sum;
            stack[count++] = sum;
        }
        store_part(args.accumulate ? load_part(to + i, left) + stack[0] : stack[0], to + i, left);
    }
}
