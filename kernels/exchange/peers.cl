/*
 * Sums of columns that the ranks of a host have staged in their windows (src/exchange/peers.h).
 *
 *   sum_tree    target[n] (+)= the root of the tree (base/tree.h) over rows [nodes][n]. Row i is in
 *               the window of rank node[i].rank, from float node[i].at on. Rows come from left to
 *               right. After row i, the last node[i].joins + 1 sums become one, two at a time from
 *               the right: left + right.
 *   sum_pairs   the same for at most MOERT_PEERS_FEW rows, where the tree joins neighbours, then
 *               neighbouring pairs, and so on
 *   stage       window[to, to + n) = source[from, from + n). For a window that other GPUs read, a
 *               kernel makes this copy faster than NVIDIA's driver
 *
 *   windows [ranks]   raw addresses at which this device finds the window of each rank
 *
 * Without rows the sum is 0; a single row is copied. A row group owns COLUMNS columns. No local
 * memory. Deterministic: each element is summed by exactly the tree's additions.
 */
#include "args/exchange.h"

#define COLUMNS    ((ulong)BY_FORM(MOERT_PEERS_COLUMNS, MOERT_PEERS_GPU_COLUMNS))
#define ROW_GROUPS BY_FORM(1, MOERT_EXCHANGE_GPU_ROW_GROUPS)
#define FEW        MOERT_PEERS_FEW

static inline global const float *row_of(global const ulong *windows, moert_peers_node node) {
    return (global const float *)(size_t)windows[node.rank] + node.at;
}

/* All loads are in flight together: one from another GPU takes two microseconds. */
INLINED vec sum_few(global const ulong *windows, const moert_peers_args *args, ulong i, int left) {
    vec x[FEW];
    UNROLL_FOR(uint node = 0; node < FEW; node++)
        x[node] =
            node < args->nodes ? load_part(row_of(windows, args->node[node]) + i, left) : (vec)0.0f;
    UNROLL_FOR(uint apart = 1; apart < FEW; apart *= 2)
        UNROLL_FOR(uint node = 0; node + apart < FEW; node += 2 * apart)
            x[node] = node + apart < args->nodes ? x[node] + x[node + apart] : x[node];
    return x[0];
}

INLINED vec sum_any(global const ulong *windows, const moert_peers_args *args, ulong i, int left) {
    vec stack[MOERT_PEERS_DEPTH];
    uint count = 0;
    stack[0] = (vec)0.0f;
    for (uint node = 0; node < args->nodes; node++) {
        vec sum = load_part(row_of(windows, args->node[node]) + i, left);
        for (uint joins = args->node[node].joins; joins > 0; joins--)
            sum = stack[--count] + sum;
        stack[count++] = sum;
    }
    return stack[0];
}

#define SUM(name, sum_rows)                                                                        \
    KERNEL_OF(ROW_GROUPS)                                                                          \
    void name(global const ulong *windows, global float *target, moert_peers_args args) {          \
        const ulong nth = get_group_id(0) * ROW_GROUPS + (ulong)row_group_index();                 \
        const ulong begin = nth * COLUMNS, end = min(begin + COLUMNS, args.n);                     \
        global float *to = target + args.target;                                                   \
        for (ulong i = begin; i < end; i += VEC) {                                                 \
            const int left = (int)min((ulong)VEC, end - i);                                        \
            const vec sum = sum_rows(windows, &args, i, left);                                     \
            store_part(args.accumulate ? load_part(to + i, left) + sum : sum, to + i, left);       \
        }                                                                                          \
    }
SUM(sum_pairs, sum_few)
SUM(sum_tree, sum_any)

KERNEL_OF(ROW_GROUPS)
void stage(global const float *source, global float *window, moert_stage_args args) {
    const ulong nth = get_group_id(0) * ROW_GROUPS + (ulong)row_group_index();
    const ulong begin = nth * COLUMNS, end = min(begin + COLUMNS, args.n);
    for (ulong i = begin; i < end; i += VEC) {
        const int left = (int)min((ulong)VEC, end - i);
        store_part(load_part(source + args.from + i, left), window + args.to + i, left);
    }
}
