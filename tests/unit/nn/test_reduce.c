// run: check=1,1gpu all=1san
/* The tree over sequences on the device, compared with the host's tree; sums of squares; the
 * addition kernel. */
#include "base/dtype.h"
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
TEST(test_tree_reduce_takes_any_number_of_sequences) {
    enum { N = 5 };
    const size_t totals[] = {16, 24, 41, 100, 257};
    for (size_t i = 0; i < MOERT_COUNT(totals); i++) {
        float *leaf = random_floats(totals[i] * N, 1.0f, 500 + i);
        check_span((moert_span){0, totals[i], totals[i]}, N, leaf, false);
        check_span((moert_span){3, totals[i] - 3, totals[i]}, N, leaf, true);
        check_span((moert_span){0, totals[i] - 1, totals[i]}, N, leaf, false);
    }
}

TEST(test_tree_reduce_takes_any_width) {
    const size_t widths[] = {0, 1, 15, 16, 1023, 1024, 1025, 4097};
    for (size_t i = 0; i < MOERT_COUNT(widths); i++) {
        float *leaf = random_floats(7 * widths[i], 1.0f, 100 + i);
        check_span((moert_span){0, 7, 7}, widths[i], leaf, false);
        check_span((moert_span){1, 5, 7}, widths[i], leaf, true);
    }
}

/* However the leaves are divided among ranks, whose partial sums the host adds, the sum has the
 * bits of one rank's sum. */
TEST(test_tree_over_any_number_of_ranks_has_the_same_bits) {
    enum { TOTAL = 11, N = 19 };
    float *leaf = random_floats(TOTAL * N, 1.0f, 200);
    float whole[N];
    for (size_t j = 0; j < N; j++)
        whole[j] = tree_value(leaf + j, N, TOTAL, 0, 16);
    for (size_t ranks = 1; ranks <= TOTAL + 2; ranks++) {
        moert_tree_node nodes[TOTAL];
        float *rows[TOTAL], values[TOTAL * N];
        size_t at = 0;
        for (size_t r = 0; r < ranks; r++) {
            size_t first = TOTAL * r / ranks, count = TOTAL * (r + 1) / ranks - first;
            moert_span span = {first, count, TOTAL};
            moert_tree_node own[MOERT_TREE_MAX_NODES];
            size_t own_count = moert_tree_nodes(span, own);
            const moert_tree_nodes_at to = {span, unset_floats(own_count * N), N, 0, false};
            ASSERT_OK(moert_tree_reduce(&to, N, upload_floats(leaf + first * N, count * N)));
            download_into(to.target, values + at * N, own_count * N * sizeof *values);
            for (size_t i = 0; i < own_count; i++, at++) {
                nodes[at] = own[i];
                rows[at] = values + at * N;
            }
        }
        float sum[N];
        moert_tree_sum_nodes(TOTAL, nodes, rows, at, sum, N);
        assert_same_bits("sum", sum, whole, N);
    }
}

static double squared_norm(const float *x, size_t n) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

/* Computes sum[count], the sums of squares of ranges of one buffer. */
static void sum_squares(moert_buffer *buffer, size_t count, const size_t *offset,
                        const size_t *length, double *sum) {
    moert_square_span *span = test_alloc(count * sizeof *span);
    moert_squares *squares;
    for (size_t i = 0; i < count; i++)
        span[i] = (moert_square_span){{buffer, MOERT_DTYPE_F32, offset[i]}, length[i]};
    ASSERT_OK(moert_squares_create(test_device, span, count, &squares));
    ASSERT_OK(moert_squares_sum(squares, sum));
    moert_squares_destroy(squares);
}

TEST(test_sum_squares_matches_float64) {
    enum { COUNT = 8 };
    const size_t length[COUNT] = {1, 0, 15, 17, 4096, 4097, 0, 100003};
    size_t offset[COUNT], size = 0;
    double sum[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        offset[i] = size + i; /* a gap before each range */
        size = offset[i] + length[i];
    }
    float *x = random_floats(size, 3.0f, 300);
    moert_buffer *buffer = upload(x, size * sizeof *x);
    sum_squares(buffer, COUNT, offset, length, sum);
    for (size_t i = 0; i < COUNT; i++) {
        const double want = squared_norm(x + offset[i], length[i]);
        assert_true(fabs(sum[i] - want) <= 1e-6 * want);
    }
    sum_squares(buffer, 0, NULL, NULL, NULL);
}

TEST(test_bf16_squares_are_those_of_the_decoded_floats) {
    const size_t lengths[] = {1, 15, 4097, 20000};
    for (size_t l = 0; l < MOERT_COUNT(lengths); l++) {
        const size_t n = lengths[l], at = 4 * l;
        float *x = random_floats(at + n, 3.0f, 310);
        uint16_t *code = test_alloc((at + n) * sizeof *code);
        for (size_t i = 0; i < at + n; i++) {
            code[i] = (uint16_t)(moert_float_bits(x[i]) >> 16);
            x[i] = moert_float_from_bits((uint32_t)code[i] << 16);
        }
        const moert_elements both[] = {
            {upload(x, (at + n) * sizeof *x), MOERT_DTYPE_F32, at},
            {upload(code, (at + n) * sizeof *code), MOERT_DTYPE_BF16, at}};
        double sum[2];
        for (size_t k = 0; k < 2; k++) {
            moert_squares *squares;
            ASSERT_OK(
                moert_squares_create(test_device, &(moert_square_span){both[k], n}, 1, &squares));
            ASSERT_OK(moert_squares_sum(squares, &sum[k]));
            moert_squares_destroy(squares);
        }
        assert_memory_equal(&sum[0], &sum[1], sizeof *sum);
    }
}

TEST(test_sum_squares_does_not_depend_on_the_position) {
    enum { LENGTH = 9001, POSITIONS = 20 };
    float *tensor = random_floats(LENGTH, 3.0f, 301);
    float *x = test_alloc((LENGTH + POSITIONS) * POSITIONS * sizeof *x);
    size_t offset[POSITIONS], length[POSITIONS];
    double sum[POSITIONS];
    for (size_t i = 0; i < POSITIONS; i++) {
        offset[i] = i * (LENGTH + 1);
        length[i] = LENGTH;
        memcpy(x + offset[i], tensor, LENGTH * sizeof *x);
    }
    moert_buffer *buffer = upload(x, (LENGTH + POSITIONS) * POSITIONS * sizeof *x);
    sum_squares(buffer, POSITIONS, offset, length, sum);
    for (size_t i = 1; i < POSITIONS; i++)
        assert_memory_equal(&sum[0], &sum[i], sizeof *sum);
}

TEST(test_sum_squares_shows_what_is_not_finite) {
    enum { LENGTH = 5000 };
    const float bad[] = {NAN, INFINITY, -INFINITY};
    const size_t offset[2] = {0, LENGTH}, length[2] = {LENGTH, LENGTH};
    for (size_t i = 0; i < 3; i++) {
        float *x = random_floats(2 * LENGTH, 1.0f, 302);
        double sum[2];
        x[LENGTH - 1] = bad[i];
        moert_buffer *buffer = upload(x, 2 * LENGTH * sizeof *x);
        sum_squares(buffer, 2, offset, length, sum);
        assert_false(isfinite(sum[0]));
        assert_true(isfinite(sum[1]));
    }
}

/* There are more blocks than work-items that add the sums of blocks. The sums are computed again
 * after a change of the buffers. */
TEST(test_squares_of_several_buffers_follow_their_values) {
    enum { BUFFERS = 3, SPANS = 2 };
    const size_t length[BUFFERS][SPANS] = {{0, 20}, {4096 * 300 + 5, 7}, {9000, 0}};
    moert_square_span span[BUFFERS * SPANS];
    moert_buffer *buffer[BUFFERS];
    moert_squares *squares;
    double want[BUFFERS * SPANS], sum[BUFFERS * SPANS];
    for (size_t b = 0; b < BUFFERS; b++) {
        const size_t size = length[b][0] + length[b][1];
        float *x = random_floats(size, 3.0f, 303 + b);
        buffer[b] = upload(x, size * sizeof *x);
        for (size_t s = 0, at = 0; s < SPANS; at += length[b][s++]) {
            const size_t i = b * SPANS + s;
            span[i] = (moert_square_span){{buffer[b], MOERT_DTYPE_F32, at}, length[b][s]};
            want[i] = squared_norm(x + at, length[b][s]);
        }
    }
    ASSERT_OK(moert_squares_create(test_device, span, BUFFERS * SPANS, &squares));
    for (int round = 0; round < 2; round++) {
        ASSERT_OK(moert_squares_sum(squares, sum));
        for (size_t i = 0; i < BUFFERS * SPANS; i++) {
            const double expected = round > 0 && span[i].x.buffer == buffer[1] ? 0.0 : want[i];
            assert_true(fabs(sum[i] - expected) <= 1e-6 * expected);
        }
        ASSERT_OK(moert_buffer_clear(buffer[1], 0, moert_buffer_bytes(buffer[1])));
    }
    moert_squares_destroy(squares);
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
