// run: check=1,1gpu all=1san
/* The tree over sequences on the device, compared with its definition (test_numbers.c adds the
 * nodes); sums of squares; the addition kernel. */
#include "nn/nn.h"
#include "support/test.h"

/* Computes a node of the tree by its definition: node (first, width) is its left half, plus its
 * right half if the right half has leaves. */
static float tree_value(const float *leaf, size_t stride, size_t total, size_t first,
                        size_t width) {
    if (width == 1)
        return leaf[first * stride];
    float left = tree_value(leaf, stride, total, first, width / 2);
    if (first + width / 2 >= total)
        return left;
    return left + tree_value(leaf, stride, total, first + width / 2, width / 2);
}

/* Reduces the span's leaves of leaf[total,n] and compares each node with its definition. */
static void check_span(moert_span span, size_t n, const float *leaf, bool accumulate) {
    enum { OFFSET = 3 };
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    size_t count = moert_tree_nodes(span, nodes), stride = n + 5, size = count * stride + OFFSET;
    float *target = random_floats(size, 1.0f, 77), *want = test_alloc(size * sizeof *want);
    memcpy(want, target, size * sizeof *want);
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < n; j++) {
            float *at = want + i * stride + OFFSET + j;
            *at = (accumulate ? *at : 0.0f) +
                  tree_value(leaf + j, n, span.total, nodes[i].first, nodes[i].width);
        }
    const moert_tree_nodes_at at = {span, upload_floats(target, size), stride, OFFSET, accumulate};
    ASSERT_OK(moert_tree_reduce(&at, n, upload_floats(leaf + span.first * n, span.count * n)));
    assert_same_bits_in("target", at.target, want, size);
}

TEST(test_tree_reduce_adds_exactly_as_the_tree_says) {
    enum { N = 17 };
    for (size_t total = 1; total <= 13; total++) {
        float *leaf = random_floats(total * N, 1.0f, total);
        for (size_t first = 0; first <= total; first++)
            for (size_t count = 0; count <= total - first; count++)
                check_span((moert_span){first, count, total}, N, leaf, (first + count) % 2 == 0);
    }
}

/* Some spans have more leaves than a kernel reads at once. Spans cover whole nodes and parts of
 * nodes. */
TEST(test_tree_reduce_takes_any_number_of_sequences_of_any_width) {
    static const struct {
        size_t total, width;
    } cases[] = {{16, 5}, {24, 5}, {41, 5},   {100, 5},  {257, 5},  {7, 0},   {7, 1},
                 {7, 15}, {7, 16}, {7, 1023}, {7, 1024}, {7, 1025}, {7, 4097}};
    for (size_t i = 0; i < MOERT_COUNT(cases); i++) {
        const size_t total = cases[i].total, width = cases[i].width;
        float *leaf = random_floats(total * width, 1.0f, 500 + i);
        check_span((moert_span){0, total, total}, width, leaf, false);
        check_span((moert_span){3, total - 3, total}, width, leaf, true);
        check_span((moert_span){1, total - 2, total}, width, leaf, true);
        check_span((moert_span){0, total - 1, total}, width, leaf, false);
    }
}

/* Computes sum[count]. */
static void sum_squares(const moert_square_span *span, size_t count, double *sum) {
    moert_squares *squares;
    ASSERT_OK(moert_squares_create(test_device, span, count, &squares));
    ASSERT_OK(moert_squares_sum(squares, sum));
    moert_squares_destroy(squares);
}

/* The third buffer has more blocks than there are work-items that add the blocks' sums. There are
 * gaps between the spans. After a change of a buffer, the test computes the sums again. */
TEST(test_squares_of_several_buffers_match_float64_and_follow_their_values) {
    enum { BUFFERS = 4, SPANS = 8 };
    const size_t length[BUFFERS][SPANS] = {
        {1, 0, 15, 17, 4096, 4097, 0, 100003}, {0, 20}, {4096 * 300 + 5, 7}, {9000}};
    moert_square_span span[BUFFERS * SPANS];
    moert_buffer *buffer[BUFFERS];
    moert_squares *squares;
    double want[BUFFERS * SPANS] = {0}, sum[BUFFERS * SPANS];
    for (size_t b = 0; b < BUFFERS; b++) {
        size_t size = 0;
        for (size_t s = 0; s < SPANS; s++, size += s + length[b][s - 1])
            span[b * SPANS + s] = (moert_square_span){.x.at = size, .length = length[b][s]};
        const float *x = random_floats(size, 3.0f, 303 + b);
        buffer[b] = upload_floats(x, size);
        for (size_t i = b * SPANS; i < (b + 1) * SPANS; i++) {
            span[i].x.buffer = buffer[b];
            for (size_t j = span[i].x.at; j < span[i].x.at + span[i].length; j++)
                want[i] += (double)x[j] * (double)x[j];
        }
    }
    ASSERT_OK(moert_squares_create(test_device, span, BUFFERS * SPANS, &squares));
    for (int round = 0; round < 2; round++) {
        ASSERT_OK(moert_squares_sum(squares, sum));
        for (size_t i = 0; i < BUFFERS * SPANS; i++) {
            const double expected = round > 0 && span[i].x.buffer == buffer[2] ? 0.0 : want[i];
            assert_within(sum[i], expected, 1e-6 * expected);
        }
        ASSERT_OK(moert_buffer_clear(buffer[2], 0, moert_buffer_bytes(buffer[2])));
    }
    moert_squares_destroy(squares);
    sum_squares(NULL, 0, NULL);
}

/* The sum of squares has the same bits for all copies of a tensor, at any position, in float32 and
 * in bf16. */
TEST(test_sums_of_squares_do_not_depend_on_position_or_dtype_and_show_what_is_not_finite) {
    enum { COPIES = 20, SPANS = 2 * COPIES };
    static const size_t lengths[] = {1, 15, 4097, 9001, 20000};
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t l = 0; l < MOERT_COUNT(lengths); l++) {
        const size_t n = lengths[l], all = (n + 1) * COPIES;
        float *x = random_floats(all, 3.0f, 301);
        moert_square_span span[SPANS];
        double sum[SPANS];
        round_all(x, n, MOERT_DTYPE_BF16);
        for (size_t i = 1; i < COPIES; i++)
            memcpy(x + i * (n + 1), x, n * sizeof *x);
        moert_buffer *floats = upload_floats(x, all), *bf16 = upload_as(x, all, MOERT_DTYPE_BF16);
        for (size_t i = 0; i < SPANS; i++)
            span[i] =
                i < COPIES
                    ? (moert_square_span){{floats, MOERT_DTYPE_F32, i * (n + 1)}, n}
                    : (moert_square_span){{bf16, MOERT_DTYPE_BF16, (i - COPIES) * (n + 1)}, n};
        sum_squares(span, SPANS, sum);
        for (size_t i = 1; i < SPANS; i++)
            assert_memory_equal(&sum[0], &sum[i], sizeof *sum);
        for (size_t i = 0; i < MOERT_COUNT(bad); i++)
            x[(2 * i + 1) * (n + 1) - 2] = bad[i]; /* the last element of copies 0, 2 and 4 */
        ASSERT_OK(moert_buffer_write(floats, 0, x, all * sizeof *x));
        sum_squares(span, SPANS, sum);
        for (size_t i = 0; i < SPANS; i++)
            assert_int_equal(isfinite(sum[i]) != 0, i % 2 == 1 || i > 4);
    }
}

TEST(test_add_takes_any_length) {
    const size_t lengths[] = {0, 1, 15, 16, 17, 4096, 4097, 20000};
    for (size_t i = 0; i < MOERT_COUNT(lengths); i++) {
        size_t n = lengths[i];
        float *x = random_floats(n, 2.0f, 400), *y = random_floats(n, 2.0f, 401);
        moert_buffer *target = upload_floats(y, n);
        ASSERT_OK(moert_add(n, upload_floats(x, n), target));
        for (size_t j = 0; j < n; j++)
            y[j] += x[j];
        assert_same_bits_in("target", target, y, n);
    }
}

TESTS(open_test_device, close_test_device)
