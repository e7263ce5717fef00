// run: check=1,2 all=3,4,2gpu,2san env=MOERT_SYNC=device
/* Reduce-scatter and all-gather between devices, against the sums of base/tree.h on the host. */
#include "exchange/peers.h"
#include "support/mpi.h"

static moert_peers *peers; /* the peers of this rank; NULL if there is only one rank */

static int open_peers(void **state) {
    return open_test_context(state) != 0 ||
           moert_peers_create(test_device, test_comm, &peers) != MOERT_OK ||
           (peers != NULL) != (test_ranks > 1);
}

static int close_peers(void **state) {
    moert_peers_destroy(peers);
    return close_test_context(state);
}

/* Returns border[ranks + 1], which divides n columns among the ranks; the last rank but one gets
 * no columns. */
static size_t *uneven_border(size_t n) {
    size_t *border = test_alloc((test_ranks + 1) * sizeof *border);
    for (size_t r = 0; r <= test_ranks; r++)
        border[r] = r + 2 == test_ranks ? n * (r + 1) / test_ranks : n * r / test_ranks;
    border[0] = 0;
    border[test_ranks] = n;
    return border;
}

static bool is_mine(const size_t *border, size_t column) {
    return column >= border[test_rank] && column < border[test_rank + 1];
}

/* The spans of the ranks' sequences: rank r has r + more sequences, or one if `alike`. The
 * sequences of rank r + 1 follow those of rank r. */
static moert_span *make_spans(size_t more, bool alike) {
    moert_span *spans = test_alloc(test_ranks * sizeof *spans);
    size_t total = 0;
    for (size_t r = 0; r < test_ranks; r++) {
        spans[r] = (moert_span){total, alike ? 1 : r + more, 0};
        total += spans[r].count;
    }
    for (size_t r = 0; r < test_ranks; r++)
        spans[r].total = total;
    return spans;
}

/* Sums n columns between the devices, and compares this rank's shard with the host's sum. With
 * `in_place`, each rank has one node, and the node's buffer receives the sum. */
static void check_sum(size_t n, size_t more, bool accumulate, bool in_place) {
    const uint64_t seed = n + 7 * more;
    const moert_span *spans = make_spans(more, in_place);
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    const size_t *border = uneven_border(n), own = moert_tree_nodes(spans[test_rank], nodes);
    const float *expected = sum_of_nodes(spans, n, seed),
                *values = draw_nodes(spans[test_rank], n, seed, test_rank),
                *before = random_floats(n, 0.5f, seed + 1 + test_rank);
    moert_buffer *rows = upload_floats(values, own * n),
                 *sum = in_place ? rows : upload_floats(before, n);
    const moert_peers_sum all = {
        .spans = spans, .node_rows = rows, .border = border, .sum = sum, .accumulate = accumulate};
    ASSERT_ON_ALL(moert_peers_can_sum(peers, spans));
    ASSERT_OK_ON_ALL(moert_peers_reduce_scatter(peers, &all));
    ASSERT_OK_ON_ALL(moert_peers_settle(peers));
    const float *got = download_floats(sum, n);
    bool same = true;
    for (size_t i = 0; i < n; i++)
        if (is_mine(border, i))
            same = same && got[i] == (accumulate ? before[i] + expected[i] : expected[i]);
        else if (!in_place)
            same = same && got[i] == before[i];
    ASSERT_ON_ALL(same);
    release_owned();
}

/* Some sums are longer than the window, so the devices compute them in several rounds. One sum is
 * in place. */
TEST(test_sums_between_devices_have_the_bits_of_the_tree) {
    const size_t floats = moert_peers_bytes(test_device) / sizeof(float);
    if (peers == NULL)
        return;
    for (size_t more = 0; more < 6; more++)
        for (size_t n = 1; n < 4000; n = 3 * n + more)
            check_sum(n, more, n % 2 == 0, false);
    if (floats < 1 << 20)
        check_sum(3 * floats + 5, 1, true, false);
    check_sum(1000, 0, false, true);
}

TEST(test_all_ranks_gather_all_shards) {
    const size_t most = moert_peers_bytes(test_device) < 1 << 23 ? 5u << 20 : 5000;
    for (size_t n = 1; n < most && peers != NULL; n = 5 * n + 3) {
        const size_t *border = uneven_border(n);
        float *all = random_floats(n, 0.5f, n), *mine = test_alloc(n * sizeof *mine);
        for (size_t i = 0; i < n; i++)
            mine[i] = is_mine(border, i) ? all[i] : -1.0f;
        moert_buffer *values = upload_floats(mine, n);
        ASSERT_OK_ON_ALL(moert_peers_all_gather(peers, border, values));
        ASSERT_ON_ALL(memcmp(download_floats(values, n), all, n * sizeof *all) == 0);
        release_owned();
    }
}

TEST(test_sums_of_too_many_nodes_are_the_hosts) {
    const size_t total = (size_t)1 << 60;
    moert_span *spans = test_alloc(test_ranks * sizeof *spans);
    for (size_t r = 0; r < test_ranks; r++) /* each span has as many nodes as possible */
        spans[r] = (moert_span){r * (total / test_ranks) + 1, total / test_ranks - 1, total};
    if (peers != NULL)
        ASSERT_ON_ALL(!moert_peers_can_sum(peers, spans));
}

MPI_TESTS(open_peers, close_peers)
