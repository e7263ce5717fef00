// run: check=1 all=1san device=0
/* The fixed tree of sums: any partition of the leaves gives the bits of the full tree. */
#include "base/rng.h"
#include "base/tree.h"
#include "support/test.h"

enum { MOST_LEAVES = 33, N = 3 };

/* Values whose sum depends on the order: magnitudes over 12 binary orders. */
static void fill(float *rows, size_t first, size_t count) {
    for (size_t i = 0; i < count * N; i++) {
        uint64_t index = first * N + i;
        double scale = (double)(1u << (index * 7 % 13));
        rows[i] = (float)(moert_rng_normal(5, 1, index) * scale);
    }
}

/* Computes the value of a node by recursion, following the definition in base/tree.h. */
static float node_value(const float *leaves, size_t total, size_t first, size_t width, size_t i) {
    if (width == 1)
        return leaves[first * N + i];
    float left = node_value(leaves, total, first, width / 2, i);
    if (first + width / 2 >= total)
        return left;
    return left + node_value(leaves, total, first + width / 2, width / 2, i);
}

static void full_tree(const float *leaves, size_t total, float *sum) {
    size_t width = 1;
    while (width < total)
        width *= 2;
    for (size_t i = 0; i < N; i++)
        sum[i] = node_value(leaves, total, 0, width, i);
}

/* Appends the nodes of a span, with their rows. Each node is summed in place, into the row of
 * its first leaf. The subtree below a node has the shape of a tree over only the leaves of that
 * node. */
static size_t reduce(moert_span span, float *leaves, moert_tree_node *nodes, float **rows) {
    const size_t count = moert_tree_nodes(span, nodes), end = span.first + span.count;
    for (size_t k = 0; k < count; k++) {
        const size_t size = moert_min(nodes[k].width, end - nodes[k].first);
        moert_tree_node single[MOST_LEAVES];
        float *leaf[MOST_LEAVES];
        for (size_t i = 0; i < size; i++) {
            single[i] = (moert_tree_node){i, 1};
            leaf[i] = leaves + (nodes[k].first - span.first + i) * N;
        }
        rows[k] = leaf[0];
        moert_tree_sum_nodes(size, single, leaf, size, rows[k], N);
    }
    return count;
}

static void check_nodes(moert_span span) {
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    size_t count = moert_tree_nodes(span, nodes), next = span.first, end = span.first + span.count;
    for (size_t k = 0; k < count; k++) {
        assert_int_equal(nodes[k].first, next);
        assert_int_equal(nodes[k].width & (nodes[k].width - 1), 0);
        assert_int_equal(nodes[k].first % nodes[k].width, 0);
        next += nodes[k].width;
    }
    /* the last node may extend past the last leaf of the tree, but no node extends into another
     * span */
    assert_true(next == end || (end == span.total && next >= end));
    assert_true(span.count > 0 || count == 0);
}

static void check_partition(size_t total, size_t cut) {
    float leaves[MOST_LEAVES * N], expected[N], sum[N];
    float *rows[2 * MOERT_TREE_MAX_NODES];
    moert_tree_node nodes[2 * MOERT_TREE_MAX_NODES];
    fill(leaves, 0, total);
    full_tree(leaves, total, expected);
    size_t count = reduce((moert_span){0, cut, total}, leaves, nodes, rows);
    count += reduce((moert_span){cut, total - cut, total}, leaves + cut * N, nodes + count,
                    rows + count);
    moert_tree_sum_nodes(total, nodes, rows, count, sum, N);
    assert_memory_equal(sum, expected, sizeof sum);
}

TEST(test_every_partition_in_two_gives_the_bits_of_the_full_tree) {
    for (size_t total = 1; total <= MOST_LEAVES; total++)
        for (size_t cut = 0; cut <= total; cut++)
            check_partition(total, cut);
}

/* Joins rows as moert_tree_append says; the nodes and the bits must be those of the span. */
static void check_span(moert_span span) {
    moert_tree_node nodes[MOERT_TREE_MAX_NODES], expected[MOERT_TREE_MAX_NODES];
    float leaves[MOST_LEAVES * N], sums[MOST_LEAVES * N], *rows[MOST_LEAVES];
    size_t depth = 0;
    check_nodes(span);
    fill(leaves, span.first, span.count);
    for (size_t i = 0; i < span.count; i++) {
        size_t top = depth;
        memcpy(sums + top * N, leaves + i * N, N * sizeof *sums);
        moert_tree_append(nodes, &depth, (moert_tree_node){span.first + i, 1}, span.total);
        for (; top >= depth; top--)
            for (size_t k = 0; k < N; k++)
                sums[(top - 1) * N + k] += sums[top * N + k];
    }
    assert_int_equal(reduce(span, leaves, expected, rows), depth);
    for (size_t k = 0; k < depth; k++) {
        assert_int_equal(nodes[k].first, expected[k].first);
        assert_int_equal(nodes[k].width, expected[k].width);
        assert_memory_equal(sums + k * N, rows[k], N * sizeof *sums);
    }
}

TEST(test_nodes_cover_a_span_from_left_to_right_as_do_leaves_appended_one_by_one) {
    for (size_t total = 1; total <= MOST_LEAVES; total++)
        for (size_t first = 0; first <= total; first++)
            for (size_t count = 0; first + count <= total; count++)
                check_span((moert_span){first, count, total});
}

TEST(test_a_tree_without_leaves_sums_to_zero) {
    float sum[N] = {1, 2, 3}, zero[N] = {0};
    moert_tree_sum_nodes(0, NULL, NULL, 0, sum, N);
    assert_memory_equal(sum, zero, sizeof sum);
}

TESTS(NULL, NULL)
