/*
 * Sums of the partials of a rank's sequences in the order of a tree.
 *
 *   tree_reduce   row i of target (+)= the sum of the rows of partial[count, n] below tree node i.
 *                 The leaves are [first, first + count) of `total` (base/tree.h); the nodes are the
 *                 largest complete ones in that range. Target row i begins at target + i * stride +
 *                 offset.
 *
 * A row group owns COLUMNS columns of all nodes. No local memory. Deterministic: each element is
 * summed by exactly the tree's additions.
 */
#include "args/nn.h"

#define COLUMNS ((ulong)BY_FORM(MOERT_REDUCE_COLUMNS, MOERT_REDUCE_GPU_COLUMNS))
#define LEAVES  8  /* leaves that sum_leaves loads at once */
#define LEVELS  28 /* levels of the tree above these leaves */

/* The widest complete node that starts at `first` and ends, clipped to total, at or before
 * `end`. */
static inline uint node_width(uint first, uint end, uint total) {
    uint width = 1;
    while (first % (2 * width) == 0 && first + width < total &&
           min(first + 2 * width, total) <= end)
        width *= 2;
    return width;
}

/* The sum of 1 to LEAVES rows by the tree. */
static inline vec sum_leaves(global const float *row, ulong stride, uint rows, int n) {
    vec x[LEAVES];
    UNROLL_FOR(uint i = 0; i < LEAVES; i++)
        x[i] = i < rows ? load_part(row + i * stride, n) : (vec)0.0f;
    UNROLL_FOR(uint apart = 1; apart < LEAVES; apart *= 2)
        UNROLL_FOR(uint i = 0; i + apart < LEAVES; i += 2 * apart)
            x[i] = i + apart < rows ? x[i] + x[i + apart] : x[i];
    return x[0];
}

/* The sum of a node's rows. If bit `level` of `done` is set, stack[level] holds the sum of LEAVES
 * << level rows. */
static inline vec sum_node(global const float *row, ulong stride, uint rows, int n) {
    vec stack[LEVELS];
    uint done = 0, first = 0;
    for (; rows - first > LEAVES; first += LEAVES, done++) {
        vec sum = sum_leaves(row + first * stride, stride, LEAVES, n);
        uint level = 0;
        for (; done >> level & 1; level++)
            sum = stack[level] + sum;
        stack[level] = sum;
    }
    vec sum = sum_leaves(row + first * stride, stride, rows - first, n);
    for (uint level = 0; done >> level > 0; level++)
        if (done >> level & 1)
            sum = stack[level] + sum;
    return sum;
}

KERNEL void tree_reduce(global const float *partial, global float *target, moert_tree_args args) {
    ulong begin = get_group_id(0) * COLUMNS, end = min(begin + COLUMNS, args.n);
    global float *to = target + args.offset;
    for (uint leaf = args.first, width; leaf < args.first + args.count;
         leaf += width, to += args.stride) {
        width = node_width(leaf, args.first + args.count, args.total);
        for (ulong i = begin; i < end; i += VEC) {
            int left = (int)min((ulong)VEC, end - i);
            vec sum = sum_node(partial + (leaf - args.first) * args.n + i, args.n,
                               min(width, args.total - leaf), left);
            store_part(args.accumulate ? load_part(to + i, left) + sum : sum, to + i, left);
        }
    }
}
