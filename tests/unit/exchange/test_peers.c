// run: check=1,2 all=3,4,2gpu,2san env=MOERT_SYNC=device
/* Reduce-scatter and all-gather between devices, against the sums of base/tree.h on the host. */
#include "base/memory.h"
#include "base/rng.h"
#include "exchange/peers.h"
#include "support/mpi.h"

static moert_peers *open_peers(void) {
    moert_peers *peers;
    ASSERT_OK_ON_ALL(moert_peers_create(test_device, test_comm, &peers));
    ASSERT_ON_ALL((peers != NULL) == (test_ranks > 1));
    return peers;
}

static void fill(float *values, size_t n, uint64_t seed, size_t rank) {
    for (size_t i = 0; i < n; i++)
        values[i] = (float)(moert_rng_uniform(seed, rank, i) - 0.5);
}

static moert_buffer *to_device(const float *values, size_t n) {
    moert_buffer *buffer;
    ASSERT_OK(moert_buffer_create(test_device, n * sizeof *values, &buffer));
    ASSERT_OK(moert_buffer_write(buffer, 0, values, n * sizeof *values));
    return buffer;
}

static float *to_host(const moert_buffer *buffer, size_t n) {
    float *values = test_alloc(n * sizeof *values);
    ASSERT_OK(moert_buffer_read(buffer, 0, values, n * sizeof *values));
    return values;
}

/* border[ranks + 1] of n columns; the last rank but one has none. */
static size_t *uneven_border(size_t n) {
    size_t *border = test_alloc((test_ranks + 1) * sizeof *border);
    for (size_t r = 0; r <= test_ranks; r++)
        border[r] = r + 2 == test_ranks ? n * (r + 1) / test_ranks : n * r / test_ranks;
    border[0] = 0;
    border[test_ranks] = n;
    return border;
}

/* The sequences of the ranks: rank r has r + more, the others follow. */
static moert_span *uneven_spans(size_t more) {
    moert_span *spans = test_alloc(test_ranks * sizeof *spans);
    size_t total = 0;
    for (size_t r = 0; r < test_ranks; r++) {
        spans[r] = (moert_span){total, r + more, 0};
        total += r + more;
    }
    for (size_t r = 0; r < test_ranks; r++)
        spans[r].total = total;
    return spans;
}

static size_t nodes_of(moert_span span) {
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    return moert_tree_nodes(span, nodes);
}

/* sum[n] of all ranks' nodes on the host; fill() gives the nodes of each rank. */
static float *sum_on_host(const moert_span *spans, size_t n, uint64_t seed) {
    moert_tree_node nodes[32 * MOERT_TREE_MAX_NODES];
    float *rows[32 * MOERT_TREE_MAX_NODES], *sum = test_alloc(n * sizeof *sum);
    size_t count = 0;
    for (size_t r = 0; r < test_ranks; r++) {
        const size_t own = moert_tree_nodes(spans[r], nodes + count);
        float *values = test_alloc(moert_max(own, 1) * n * sizeof *values);
        fill(values, own * n, seed, r);
        for (size_t i = 0; i < own; i++)
            rows[count + i] = values + i * n;
        count += own;
    }
    moert_tree_sum_nodes(spans[0].total, nodes, rows, count, sum, n);
    return sum;
}

/* Sums n columns between the devices, and compares this rank's shard with the host's sum. */
static void check_sum(moert_peers *peers, size_t n, size_t more, bool accumulate) {
    const uint64_t seed = n + 7 * more;
    const moert_span *spans = uneven_spans(more);
    const size_t *border = uneven_border(n), own = nodes_of(spans[test_rank]);
    float *values = test_alloc(moert_max(own, 1) * n * sizeof *values);
    float *before = test_alloc(n * sizeof *before);
    const float *expected = sum_on_host(spans, n, seed);
    fill(values, own * n, seed, test_rank);
    fill(before, n, seed + 1, test_rank);
    moert_buffer *rows = to_device(values, moert_max(own, 1) * n), *sum = to_device(before, n);
    ASSERT_ON_ALL(moert_peers_can_sum(peers, spans));
    ASSERT_OK_ON_ALL(
        moert_peers_reduce_scatter(peers, &(moert_peers_sum){.spans = spans,
                                                             .node_rows = rows,
                                                             .border = border,
                                                             .sum = sum,
                                                             .accumulate = accumulate}));
    ASSERT_OK_ON_ALL(moert_peers_settle(peers));
    const float *got = to_host(sum, n);
    bool same = true;
    for (size_t i = 0; i < n; i++) {
        const bool mine = i >= border[test_rank] && i < border[test_rank + 1];
        const float want = !mine ? before[i] : accumulate ? before[i] + expected[i] : expected[i];
        same = same && got[i] == want;
    }
    ASSERT_ON_ALL(same);
    MOERT_DESTROY(rows, sum);
}

TEST(test_sums_between_devices_have_the_bits_of_the_tree) {
    moert_peers *peers = open_peers();
    for (size_t more = 0; more < 6 && peers != NULL; more++)
        for (size_t n = 1; n < 4000; n = 3 * n + more)
            check_sum(peers, n, more, n % 2 == 0);
    moert_peers_destroy(peers);
}

TEST(test_sums_longer_than_the_window_pass_in_several_rounds) {
    moert_peers *peers = open_peers();
    const size_t floats = moert_peers_bytes(test_device) / sizeof(float);
    if (peers != NULL && floats < 1 << 20)
        check_sum(peers, 3 * floats + 5, 1, true);
    moert_peers_destroy(peers);
}

TEST(test_the_buffer_of_the_nodes_may_receive_the_sum) {
    enum { N = 1000 };
    moert_peers *peers = open_peers();
    moert_span *spans = test_alloc(test_ranks * sizeof *spans);
    for (size_t r = 0; r < test_ranks; r++)
        spans[r] = (moert_span){r, 1, test_ranks};
    if (peers != NULL) {
        const size_t *border = uneven_border(N);
        float values[N];
        fill(values, N, 3, test_rank);
        moert_buffer *sum = to_device(values, N);
        ASSERT_OK_ON_ALL(moert_peers_reduce_scatter(
            peers,
            &(moert_peers_sum){.spans = spans, .node_rows = sum, .border = border, .sum = sum}));
        const float *got = to_host(sum, N), *expected = sum_on_host(spans, N, 3);
        bool same = true;
        for (size_t i = border[test_rank]; i < border[test_rank + 1]; i++)
            same = same && got[i] == expected[i];
        ASSERT_ON_ALL(same);
        moert_buffer_destroy(sum);
    }
    moert_peers_destroy(peers);
}

TEST(test_all_ranks_gather_all_shards) {
    moert_peers *peers = open_peers();
    const size_t most = moert_peers_bytes(test_device) < 1 << 23 ? 5u << 20 : 5000;
    for (size_t n = 1; n < most && peers != NULL; n = 5 * n + 3) {
        const size_t *border = uneven_border(n);
        float *all = test_alloc(n * sizeof *all), *mine = test_alloc(n * sizeof *mine);
        fill(all, n, n, 99);
        for (size_t i = 0; i < n; i++)
            mine[i] = i >= border[test_rank] && i < border[test_rank + 1] ? all[i] : -1.0f;
        moert_buffer *values = to_device(mine, n);
        ASSERT_OK_ON_ALL(moert_peers_all_gather(peers, border, values));
        ASSERT_ON_ALL(memcmp(to_host(values, n), all, n * sizeof *all) == 0);
        moert_buffer_destroy(values);
    }
    moert_peers_destroy(peers);
}

TEST(test_sums_of_too_many_nodes_are_the_hosts) {
    moert_peers *peers = open_peers();
    const size_t total = (size_t)1 << 60;
    moert_span *spans = test_alloc(test_ranks * sizeof *spans);
    for (size_t r = 0; r < test_ranks; r++) /* as many nodes as a span can have */
        spans[r] = (moert_span){r * (total / test_ranks) + 1, total / test_ranks - 1, total};
    if (peers != NULL)
        ASSERT_ON_ALL(!moert_peers_can_sum(peers, spans));
    moert_peers_destroy(peers);
}

MPI_TESTS(open_test_context, close_test_context)
