// run: check=1,1gpu all=1san
/* Embedding: rows are copied, gradients are summed per sequence in token order. */
#include "base/rng.h"
#include "nn/nn.h"
#include "support/test.h"

/* Every eighth token is padding. */
static int32_t *random_tokens(size_t n, size_t vocabulary, uint64_t stream) {
    int32_t *token = test_alloc(n * sizeof *token);
    for (size_t i = 0; i < n; i++)
        token[i] =
            i % 8 == 7 ? -1 : (int32_t)(moert_rng_uniform(5, stream, i) * (double)vocabulary);
    return token;
}

static void check_forward(size_t tokens, size_t hidden, size_t vocabulary) {
    float *table = random_floats(vocabulary * hidden, 1.0f, 1);
    int32_t *token = random_tokens(tokens, vocabulary, 2);
    moert_buffer *x = unset_floats(tokens * hidden);
    ASSERT_OK(moert_embedding_forward(tokens, hidden, upload_floats(table, vocabulary * hidden),
                                      upload(token, tokens * sizeof *token), x));
    float *got = download_floats(x, tokens * hidden);
    const float *zeros = test_alloc(hidden * sizeof *zeros);
    for (size_t t = 0; t < tokens; t++)
        assert_same_bits("x", got + t * hidden,
                         token[t] < 0 ? zeros : table + (size_t)token[t] * hidden, hidden);
}

TEST(test_forward_copies_the_rows_of_the_tokens) {
    check_forward(0, 8, 3);
    check_forward(1, 1, 1);
    check_forward(15, 17, 5);
    check_forward(17, 64, 256);
    check_forward(100, 4097, 7);
}

/* Computes partial[S,R,H]: sums dx over the tokens of a sequence that equal a row, in float32 and
 * in token order. */
static float *host_partial(const int32_t *token, const float *dx, moert_embedding_part part) {
    const size_t hidden = part.hidden;
    float *partial = test_alloc(part.sequences * part.rows * hidden * sizeof *partial);
    for (size_t i = 0; i < part.sequences * part.length; i++) {
        const size_t t = part.first_sequence * part.length + i,
                     row = (size_t)token[t] - part.first_row;
        for (size_t h = 0; row < part.rows && h < hidden; h++)
            partial[(i / part.length * part.rows + row) * hidden + h] += dx[t * hidden + h];
    }
    return partial;
}

/* Runs the backward and returns partial[S,R,H]. */
static float *backward(const int32_t *token, const float *dx, moert_embedding_part part) {
    const size_t tokens = (part.first_sequence + part.sequences) * part.length;
    const size_t n = part.sequences * part.rows * part.hidden;
    part.token = upload(token, tokens * sizeof *token);
    part.dx = upload_floats(dx, tokens * part.hidden);
    part.partial = unset_floats(n);
    ASSERT_OK(moert_embedding_backward(&part));
    return download_floats(part.partial, n);
}

TEST(test_backward_sums_the_requested_rows_in_token_order) {
    /* One case has sequences of 1300 tokens and a vocabulary of 3000, so few tokens equal each of
     * the requested rows. The partial of a sequence without tokens is still written. */
    static const struct {
        size_t sequences, length, hidden, vocabulary, first_row, rows;
    } cases[] = {
        {1, 64, 16, 4, 0, 4},  {3, 33, 17, 5, 0, 5},         {2, 20, 257, 3, 0, 3},
        {2, 7, 4097, 2, 0, 2}, {2, 50, 19, 10, 3, 4},        {2, 50, 19, 10, 9, 1},
        {2, 5, 16, 10, 0, 0},  {2, 1300, 12, 3000, 100, 70}, {0, 8, 16, 4, 0, 4},
        {2, 0, 17, 4, 0, 4},
    };
    for (size_t i = 0; i < MOERT_COUNT(cases); i++) {
        const size_t sequences = cases[i].sequences, length = cases[i].length,
                     hidden = cases[i].hidden, rows = cases[i].rows, tokens = sequences * length;
        const float *dx = random_floats(tokens * hidden, 1.0f, 3);
        const int32_t *token = random_tokens(tokens, cases[i].vocabulary, 4);
        moert_embedding_part part = {.sequences = sequences,
                                     .length = length,
                                     .hidden = hidden,
                                     .first_row = cases[i].first_row,
                                     .rows = rows};
        do {
            part.sequences = sequences - part.first_sequence;
            assert_same_bits("partial", backward(token, dx, part), host_partial(token, dx, part),
                             part.sequences * rows * hidden);
        } while (++part.first_sequence < sequences);
    }
}

/* Computes the tree nodes of a span in two ways and compares their bits. The first way uses linked
 * lists of equal tokens, without the token `fixed`. The second way is a tree reduction of one
 * partial per sequence, for which `fixed` is padding. */
static void check_gradient(moert_span span, size_t length, size_t hidden, size_t rows,
                           bool accumulate, int32_t fixed) {
    enum { OFFSET = 4 };
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    const size_t tokens = span.count * length, n = rows * hidden, stride = n + 8;
    const size_t size = moert_tree_nodes(span, nodes) * stride + OFFSET;
    float *dx = random_floats(tokens * hidden, 1.0f, 8), *old = random_floats(size, 1.0f, 9);
    int32_t *token = random_tokens(tokens, rows, 10);
    int32_t *links = test_alloc(2 * tokens * sizeof *links);
    ASSERT_OK(moert_embedding_links(span, length, rows, fixed, token, links));
    for (size_t i = 0; i < tokens; i++)
        token[i] = token[i] == fixed ? -1 : token[i];
    moert_buffer *dx_buffer = upload_floats(dx, tokens * hidden);
    moert_buffer *token_buffer = upload(token, tokens * sizeof *token);
    moert_buffer *partial = unset_floats(span.count * n);
    moert_buffer *target[2] = {upload_floats(old, size), upload_floats(old, size)};
    ASSERT_OK(moert_embedding_backward(&(moert_embedding_part){
        span.count, length, hidden, 0, rows, token_buffer, dx_buffer, partial, 0}));
    ASSERT_OK(moert_tree_reduce(&(moert_tree_nodes_at){span, target[0], stride, OFFSET, accumulate},
                                n, partial));
    ASSERT_OK(moert_embedding_gradient(
        &(moert_embedding_sum){.length = length,
                               .hidden = hidden,
                               .rows = rows,
                               .token = token_buffer,
                               .link = upload(links, 2 * tokens * sizeof *links),
                               .dx = dx_buffer,
                               .at = {span, target[1], stride, OFFSET, accumulate}}));
    assert_same_bits_in("nodes", target[1], download_floats(target[0], size), size);
}

TEST(test_gradient_has_the_bits_of_the_tree_over_sequences) {
    for (size_t total = 1; total <= 9; total++)
        for (size_t first = 0; first < total; first++)
            for (size_t count = 0; count <= total - first; count++) {
                const moert_span span = {first, count, total};
                check_gradient(span, 6, 5, 3 + 20 * (count % 2), (first + count) % 2 == 0,
                               (int32_t)(total % 4) - 1);
            }
}

TEST(test_gradient_takes_any_width_and_rows_of_many_tokens) {
    check_gradient((moert_span){0, 40, 40}, 1, 129, 2, false, 1);
    check_gradient((moert_span){0, 4, 4}, 300, 260, 1, true, -1);
    check_gradient((moert_span){3, 30, 70}, 9, 64, 40, false, 0);
    check_gradient((moert_span){0, 2, 2}, 0, 16, 4, false, -1);
}

TESTS(open_test_device, close_test_device)
