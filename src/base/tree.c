/* The fixed binary tree over global sequences. */
#include "base/tree.h"

#include <string.h>

/* The width of the widest complete node that starts at `first` and ends at or before `end`. The end
 * of a node that reaches past `total` is `total`. */
static size_t widest(size_t first, size_t end, size_t total) {
    size_t width = 1;
    while (first % (2 * width) == 0 && first + width < total &&
           (first + 2 * width < total ? first + 2 * width : total) <= end)
        width *= 2;
    return width;
}

size_t moert_tree_nodes(moert_span span, moert_tree_node nodes[MOERT_TREE_MAX_NODES]) {
    size_t count = 0, end = span.first + span.count;
    for (size_t first = span.first; first < end; count++) {
        nodes[count] = (moert_tree_node){first, widest(first, end, span.total)};
        first += nodes[count].width;
    }
    return count;
}

void moert_tree_append(moert_tree_node *nodes, size_t *count, moert_tree_node node, size_t total) {
    const size_t reached = node.first + node.width;
    nodes[(*count)++] = node;
    while (*count > 1) {
        moert_tree_node *left = &nodes[*count - 2];
        const size_t wide = 2 * left->width, end = left->first + wide;
        if (left->first % wide != 0 || reached < (end < total ? end : total))
            return;
        left->width = wide;
        (*count)--;
    }
}

/* Sums the rows of the given nodes within `node` into the row of the leftmost given node, and
 * returns that row. *at is the index of the next unused given node. */
static float *evaluate(size_t total, moert_tree_node node, const moert_tree_node *nodes,
                       float *const *rows, size_t *at, size_t n) {
    /* the caller may give `node` with a smaller width if the rest of `node` lies past the last
     * leaf */
    if (nodes[*at].width >= node.width)
        return rows[(*at)++];
    size_t half = node.width / 2;
    float *left = evaluate(total, (moert_tree_node){node.first, half}, nodes, rows, at, n);
    if (node.first + half >= total)
        return left;
    const float *right =
        evaluate(total, (moert_tree_node){node.first + half, half}, nodes, rows, at, n);
    for (size_t i = 0; i < n; i++)
        left[i] += right[i];
    return left;
}

void moert_tree_sum_nodes(size_t total, const moert_tree_node *nodes, float *const *rows,
                          size_t count, float *sum, size_t n) {
    if (count == 0) {
        memset(sum, 0, n * sizeof *sum);
        return;
    }
    size_t at = 0, width = 1;
    while (width < total)
        width *= 2;
    const float *root = evaluate(total, (moert_tree_node){0, width}, nodes, rows, &at, n);
    if (root != sum)
        memcpy(sum, root, n * sizeof *sum);
}
