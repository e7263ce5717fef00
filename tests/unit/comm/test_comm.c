// run: check=1,2 all=3,4,2san device=0
/* Collectives, agreement and tree sums, on any number of ranks. */
#include "comm/internal.h"
#include "comm/tree_sum.h"
#include "support/mpi.h"

static bool broadcast_from_every_root(void) {
    bool right = true;
    for (size_t root = 0; root < test_ranks; root++) {
        const uint64_t mine = mpi_value(test_rank, 9, 9);
        uint64_t data[6] = {[5] = mine}; /* the broadcast does not include the last element */
        for (size_t i = 0; i < 5 && test_rank == root; i++)
            data[i] = mpi_value(root, 0, i);
        right = moert_comm_broadcast(test_comm, root, data, 5 * sizeof *data) == MOERT_OK && right;
        for (size_t i = 0; i < 6; i++)
            right = right && data[i] == (i < 5 ? mpi_value(root, 0, i) : mine);
    }
    return right;
}

/* Each rank contributes two values; if `uneven`, rank r contributes r % 3 values. */
static bool gather(bool uneven, bool in_place) {
    uint64_t mine[2], all[2 * 256];
    size_t bytes[256], start = 0;
    for (size_t r = 0; r < test_ranks; r++) {
        bytes[r] = (uneven ? r % 3 : 2) * sizeof *mine;
        start += r < test_rank ? bytes[r] / sizeof *mine : 0;
    }
    uint64_t *from = in_place ? all + start : mine;
    for (size_t i = 0; i < bytes[test_rank] / sizeof *mine; i++)
        from[i] = mpi_value(test_rank, 0, i);
    bool right = (uneven ? moert_comm_allgatherv(test_comm, from, bytes, all)
                         : moert_comm_allgather(test_comm, from, sizeof mine, all)) == MOERT_OK;
    for (size_t r = 0, at = 0; r < test_ranks; r++)
        for (size_t i = 0; i < bytes[r] / sizeof *mine; i++)
            right = right && all[at++] == mpi_value(r, 0, i);
    return right;
}

static void print_words(const void *object, FILE *file) {
    for (const char *const *word = object; *word != NULL; word++)
        fprintf(file, "%s%c", *word, 0);
}

TEST(test_entries_are_compared_with_those_of_rank_0) {
    static const struct {
        const char *first[3], *last[3]; /* entries of rank 0, and of the last rank */
        const char *text;               /* part of the message; NULL: the entries are equal */
    } rows[] = {
        {{"a 1", "b 2"}, {"a 1", "b 2"}, NULL},
        {{NULL}, {NULL}, NULL},
        {{"a 1", "b 2"}, {"a 1", "b 3"}, "has b 3, but rank 0 has b 2; the rule"},
        {{"a 1", "b 2"}, {"a 1"}, "has nothing more, but rank 0 has b 2; the rule"},
        {{"a 1"}, {"a 1", ""}, "has , but rank 0 has nothing more; the rule"},
        {{"a b"}, {"a", "b"}, "has a, but rank 0 has a b; the rule"},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const bool odd = test_rank > 0 && test_rank + 1 == test_ranks;
        const moert_status status =
            moert_comm_compare(test_comm, print_words, odd ? rows[i].last : rows[i].first,
                               MOERT_ERROR_MISMATCH, "the rule");
        if (rows[i].text == NULL || test_ranks == 1)
            ASSERT_OK_ON_ALL(status);
        else
            ASSERT_FAILS_ON_ALL(status, MOERT_ERROR_MISMATCH, rows[i].text);
    }
}

static size_t rows_between(size_t from, size_t to) {
    return (from * 5 + to * 3) % 4 * (from + to + 1);
}

static bool exchange_uneven(void) {
    enum { WIDTH = 3 };
    size_t send_rows[256], receive_rows[256], sent = 0, received = 0;
    for (size_t r = 0; r < test_ranks; r++) {
        sent += send_rows[r] = rows_between(test_rank, r);
        received += receive_rows[r] = rows_between(r, test_rank);
    }
    uint64_t *send = test_alloc((sent + 1) * WIDTH * sizeof *send);
    uint64_t *receive = test_alloc((received + 1) * WIDTH * sizeof *receive);
    for (size_t r = 0, at = 0; r < test_ranks; r++)
        for (size_t i = 0; i < send_rows[r] * WIDTH; i++)
            send[at++] = mpi_value(test_rank, r, i);
    bool right = moert_comm_alltoallv(test_comm, send, send_rows, receive, receive_rows,
                                      WIDTH * sizeof *send) == MOERT_OK;
    for (size_t r = 0, at = 0; r < test_ranks; r++)
        for (size_t i = 0; i < receive_rows[r] * WIDTH; i++)
            right = right && receive[at++] == mpi_value(r, test_rank, i);
    return right;
}

/* Each collective runs once with whole messages, and once with messages of 7 bytes. */
TEST(test_collectives_take_pieces_uneven_empty_in_place_and_longer_than_a_message) {
    const size_t limit = moert_comm_piece_bytes, mail_limit = moert_mail_piece_bytes;
    for (int several = 0; several < 2; several++) {
        moert_comm_piece_bytes = several ? 7 : limit;
        moert_mail_piece_bytes = several ? 7 : mail_limit;
        bool right = broadcast_from_every_root();
        right = gather(false, false) && right;
        right = gather(true, false) && right;
        right = gather(true, true) && right;
        right = exchange_uneven() && right;
        moert_comm_piece_bytes = limit;
        moert_mail_piece_bytes = mail_limit;
        ASSERT_ON_ALL(right);
    }
}

TEST(test_agreement_gives_all_ranks_the_lowest_failure) {
    bool right = moert_comm_agree(test_comm, MOERT_OK) == MOERT_OK;
    for (size_t bad = 0; bad < test_ranks; bad++) {
        moert_status mine = MOERT_OK;
        if (test_rank == bad)
            mine = MOERT_FAIL(ERROR_IO, "the file of rank %zu is short", test_rank);
        else if (test_rank > bad)
            mine = MOERT_FAIL(ERROR_NUMERIC, "not the lowest");
        right = moert_comm_agree(test_comm, mine) == MOERT_ERROR_IO && right;
        const char *prefix =
            test_ranks > 1 ? titled("rank %zu (%s): ", bad, moert_comm_host(test_comm, bad)) : "";
        const char *text = titled("%sthe file of rank %zu is short", prefix, bad);
        right = right && strcmp(moert_last_error(), text) == 0;
        right = right && moert_comm_failure_is_shared();
        /* a second agreement does not change the message */
        right = moert_comm_agree(test_comm, MOERT_ERROR_IO) == MOERT_ERROR_IO && right;
        right = right && strcmp(moert_last_error(), text) == 0;
    }
    MOERT_FAIL(ERROR_IO, "another failure, of this rank alone");
    right = right && !moert_comm_failure_is_shared();
    ASSERT_ON_ALL(right);
}

/* Rank `odd` skips the first agreement of the other ranks and enters a later one, with or without a
 * failure of its own. */
static bool detects_rank_out_of_step(size_t odd, moert_status failure) {
    const int line = __LINE__ + 3; /* source line of the first agreement */
    moert_status status;
    if (test_rank != odd)
        status = moert_comm_agree(test_comm, MOERT_OK);
    else
        status = moert_comm_agree(test_comm, failure);
    const char *others = titled("at %s:%d", __FILE__, line);
    const char *skipped =
        titled("rank %zu (%s) at %s:%d", odd, moert_comm_host(test_comm, odd), __FILE__, line + 2);
    if (odd == 0) /* the message names rank 0 and the first rank that is elsewhere */
        others = titled("rank 1 (%s) %s", moert_comm_host(test_comm, 1), others);
    return status == MOERT_ERROR_INTERNAL && strstr(moert_last_error(), others) != NULL &&
           strstr(moert_last_error(), skipped) != NULL && !moert_comm_failure_is_shared();
}

TEST(test_ranks_at_different_agreements_are_named) {
    bool right = true;
    for (size_t odd = 0; odd < test_ranks && test_ranks > 1; odd++) {
        right = detects_rank_out_of_step(odd, MOERT_OK) && right;
        right = detects_rank_out_of_step(odd, MOERT_ERROR_MEMORY) && right;
    }
    ASSERT_ON_ALL(right);
    ASSERT_ON_ALL(moert_comm_agree(test_comm, MOERT_OK) == MOERT_OK);
}

TEST(test_split_keeps_the_order_and_names_ranks_of_the_whole) {
    moert_comm *part = NULL;
    bool right = moert_comm_split(test_comm, test_rank % 2, &part) == MOERT_OK;
    size_t count = (test_ranks + 1 - test_rank % 2) / 2, ranks[256];
    right = right && moert_comm_size(part) == count && moert_comm_rank(part) == test_rank / 2;
    right = right && moert_comm_allgather(part, &test_rank, sizeof test_rank, ranks) == MOERT_OK;
    for (size_t r = 0; right && r < count; r++)
        right = ranks[r] == 2 * r + test_rank % 2;
    moert_status mine = MOERT_OK;
    if (right && test_rank / 2 == count - 1)
        mine = MOERT_FAIL(ERROR_FORMAT, "last of its part");
    const char *prefix = titled("rank %zu (", 2 * (count - 1) + test_rank % 2);
    right = right && moert_comm_agree(part, mine) == MOERT_ERROR_FORMAT;
    if (count > 1)
        right = right && strncmp(moert_last_error(), prefix, strlen(prefix)) == 0;
    right = right && moert_comm_failure_is_shared() == (test_ranks == 1);
    moert_comm_destroy(part);
    ASSERT_ON_ALL(right);
}

/* With MOERT_NODE_RANKS=N, every N ranks count as a host, even in communicators of only some
 * ranks. */
TEST(test_ranks_of_one_host_are_counted_and_may_count_as_several) {
    static const char *const settings[] = {NULL, "3"};
    for (size_t i = 0; i < MOERT_COUNT(settings); i++) {
        const size_t each = i == 0 ? test_ranks : 3, odd_first = test_rank % 2;
        moert_comm *whole = NULL, *odd = NULL;
        set_variable("MOERT_NODE_RANKS", settings[i]);
        bool right = moert_comm_split(test_comm, 0, &whole) == MOERT_OK &&
                     moert_comm_split(test_comm, test_rank % 2, &odd) == MOERT_OK;
        set_variable("MOERT_NODE_RANKS", NULL);
        const size_t nodes = moert_ceil_div(test_ranks, each), mine = test_rank / each;
        right = right && moert_comm_node_count(whole) == nodes &&
                moert_comm_node_rank(whole) == test_rank % each &&
                moert_comm_node_size(whole) == moert_min(each, test_ranks - mine * each);
        for (size_t r = 0; right && r < test_ranks; r++)
            right = moert_comm_node(whole, r) == r / each && strlen(moert_comm_host(whole, r)) > 0;
        for (size_t r = 0; right && r < moert_comm_size(odd); r++)
            right = moert_comm_node(odd, r) == (2 * r + odd_first) / each - odd_first / each;
        moert_comm_destroy(whole);
        moert_comm_destroy(odd);
        ASSERT_ON_ALL(right);
    }
    moert_comm_destroy(NULL);
}

/* ---- tree sums ---- */

/* Divides n columns among the ranks. kind 0: evenly; 1: the last rank gets all; 2: each rank gets
 * more than the previous rank. */
static void set_borders(size_t n, size_t kind, size_t *border) {
    const size_t sum = test_ranks * (test_ranks + 1) / 2;
    for (size_t r = 0; r <= test_ranks; r++) {
        const size_t borders[] = {n * r / test_ranks, r < test_ranks ? 0 : n,
                                  n * (r * (r + 1) / 2) / sum};
        border[r] = borders[kind];
    }
}

/* Compares the tree sum with the host's sum, both sharded (with every kind of borders) and
 * gathered. */
static bool sum_is_right(moert_span span, size_t n) {
    moert_span *spans = test_alloc(test_ranks * sizeof *spans);
    size_t *border = test_alloc((test_ranks + 1) * sizeof *border);
    bool right = moert_comm_gather_spans(test_comm, span, spans) == MOERT_OK;
    const float *expected = sum_of_nodes(spans, n, n);
    for (size_t kind = 0; kind < 3; kind++) {
        float *rows = draw_nodes(span, n, n, test_rank);
        moert_tree_sum *sum = NULL;
        set_borders(n, kind, border);
        const size_t first = border[test_rank], count = border[test_rank + 1] - first;
        right = moert_tree_sum_start(test_comm, spans, rows, border, &sum) == MOERT_OK && right;
        right = moert_tree_sum_progress(sum) == MOERT_OK && right;
        right = moert_tree_sum_wait(sum) == MOERT_OK && right;
        right = memcmp(rows + first, expected + first, count * sizeof *rows) == 0 && right;
        right = moert_comm_gather_shards(test_comm, border, rows) == MOERT_OK && right;
        right = memcmp(rows, expected, n * sizeof *rows) == 0 && right;
    }
    return right;
}

/* Tries all ways to divide the leaves from `first` on among the ranks from `at` on, one span
 * each. */
static bool all_spans(size_t at, size_t first, size_t total, moert_span mine) {
    if (at == test_ranks)
        return sum_is_right(mine, 5);
    bool right = true;
    size_t left = total - first;
    for (size_t count = at + 1 == test_ranks ? left : 0; count <= left; count++) {
        if (at == test_rank)
            mine = (moert_span){first, count, total};
        right = all_spans(at + 1, first + count, total, mine) && right;
    }
    return right;
}

/* A tree of the ranks' nodes has the bits of one rank's tree of all leaves (test_numbers.c), also
 * if columns are summed in several rounds. */
TEST(test_tree_sum_has_the_bits_of_one_rank_for_all_spans) {
    const size_t usual = moert_tree_round_floats, rounds[] = {usual, 2};
    bool right = true;
    for (int i = 0; i < 2; i++) {
        moert_tree_round_floats = rounds[i];
        for (size_t total = 0; total <= 13; total++) /* without leaves, the sum is zero */
            right = all_spans(0, 0, total, (moert_span){0}) && right;
    }
    moert_tree_round_floats = usual;
    ASSERT_ON_ALL(right);
}

/* Several tree sums on different communicators are in flight at once, and complete in another order
 * than they start. */
TEST(test_tree_sums_overlap_each_other_and_other_calls) {
    enum { SUMS = 3, N = 4001 };
    const size_t usual = moert_tree_round_floats;
    const moert_span span = {test_rank, 1, test_ranks};
    moert_span *spans = test_alloc(test_ranks * sizeof *spans);
    size_t *border = test_alloc((test_ranks + 1) * sizeof *border);
    float *rows[SUMS];
    moert_tree_sum *sums[SUMS] = {NULL};
    moert_comm *part = NULL;
    bool right = moert_comm_split(test_comm, 0, &part) == MOERT_OK;
    right = moert_comm_gather_spans(test_comm, span, spans) == MOERT_OK && right;
    set_borders(N, 0, border);
    moert_tree_round_floats = 1000;
    for (size_t i = 0; i < SUMS; i++) {
        rows[i] = draw_nodes(span, N, 9, test_rank);
        for (size_t j = 0; j < N; j++)
            rows[i][j] *= (float)(1u << i);
        right = moert_tree_sum_start(i == 1 ? part : test_comm, spans, rows[i], border, &sums[i]) ==
                    MOERT_OK &&
                right;
        right = moert_comm_barrier(test_comm) == MOERT_OK && right;
    }
    const size_t first = border[test_rank], count = border[test_rank + 1] - first;
    const float *expected = sum_of_nodes(spans, N, 9);
    for (size_t i = SUMS; i-- > 0;) {
        right = moert_tree_sum_progress(sums[0]) == MOERT_OK && right;
        right = moert_tree_sum_wait(sums[i]) == MOERT_OK && right;
        for (size_t j = first; j < first + count; j++)
            right = right && rows[i][j] == expected[j] * (float)(1u << i);
    }
    moert_tree_round_floats = usual;
    moert_comm_destroy(part);
    ASSERT_ON_ALL(right);
}

TEST(test_tree_sum_refuses_spans_that_leave_a_gap) {
    moert_span *spans = test_alloc(test_ranks * sizeof *spans);
    const moert_span span = {test_rank, 1, test_ranks + 1};
    bool right = moert_comm_gather_spans(test_comm, span, spans) == MOERT_ERROR_MISMATCH;
    ASSERT_ON_ALL(right && strstr(moert_last_error(), "leaves") != NULL);
}

MPI_TESTS(NULL, NULL)
