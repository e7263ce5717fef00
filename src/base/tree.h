/*
 * The fixed binary tree that sums the gradients of replicated parameters. The leaves of the tree
 * are the global sequences 0..total-1. The shape depends on `total` only, so the sum has the same
 * bits on any number of ranks.
 *
 * The node (first, width), with width = 2^level and first a multiple of width, covers the leaves
 * [first, first + width) below `total`. The node's value is the sum of its two halves, left +
 * right, or its left half if the right half is empty.
 *
 *              (0,8)               total = 6; a rank with leaves [3,6) holds the nodes (3,1) and
 *          /           \           (4,4). (4,4) is complete since leaves 6 and 7 do not exist.
 *       (0,4)         (4,4)
 *      /     \        /    \
 *   (0,2)   (2,2)   (4,2)   -
 *    / \     / \     / \
 *   0   1   2   3   4   5
 */
#pragma once

#include <stddef.h>

/* The contiguous leaves [first, first + count) of `total`, such as those of a rank. */
typedef struct moert_span {
    size_t first, count, total;
} moert_span;

typedef struct moert_tree_node {
    size_t first, width;
} moert_tree_node;

enum { MOERT_TREE_MAX_NODES = 128 };

/* Writes the largest complete nodes within a span, from left to right; returns their number (at
 * most 2 log2(total) + 2). */
size_t moert_tree_nodes(moert_span span, moert_tree_node nodes[MOERT_TREE_MAX_NODES]);

/* Appends `node` to nodes[*count]. Before the call, nodes[] has the largest complete nodes within a
 * run of leaves that ends where `node` begins. While the last two nodes form a complete node, that
 * node replaces them. With n nodes before the call, there are n + 1 - *count such replacements. For
 * each replacement, the caller must add the last node's row to the row of the node before. */
void moert_tree_append(moert_tree_node *nodes, size_t *count, moert_tree_node node, size_t total);

/*
 * sum[n] = the root of the tree, from `count` nodes in ascending order; rows[i] has the n values of
 * nodes[i]. The nodes must cover all leaves of `total` exactly once. The call overwrites the rows.
 * `sum` may be rows[0].
 */
void moert_tree_sum_nodes(size_t total, const moert_tree_node *nodes, float *const *rows,
                          size_t count, float *sum, size_t n);
