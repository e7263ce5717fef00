// run: np=1,2,3,4 sanitize=2
/* Collectives, agreement, tree sums and shared memory, on any number of ranks. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/rng.h"
#include "comm/internal.h"
#include "comm/tree_sum.h"
#include "io/durable.h"
#include "support/mpi.h"

static uint64_t value(size_t from, size_t to, size_t index) {
    return from * 1000003 + to * 1009 + index;
}

static void test_broadcast_reaches_every_rank_from_every_root(void **state) {
    (void)state;
    bool right = true;
    for (size_t root = 0; root < test_ranks; root++) {
        uint64_t data[5] = {0};
        for (size_t i = 0; i < 5 && test_rank == root; i++)
            data[i] = value(root, 0, i);
        right = moert_comm_broadcast(test_comm, root, data, sizeof data) == MOERT_OK && right;
        for (size_t i = 0; i < 5; i++)
            right = right && data[i] == value(root, 0, i);
    }
    ASSERT_ON_ALL(right);
}

/* Rank r brings r % 3 values, so some bring none. */
static bool gather_uneven(bool in_place) {
    uint64_t mine[2], all[2 * 256];
    size_t bytes[256], start = 0, total = 0;
    for (size_t r = 0; r < test_ranks; r++) {
        bytes[r] = r % 3 * sizeof *mine;
        start += r < test_rank ? r % 3 : 0;
        total += r % 3;
    }
    uint64_t *from = in_place ? all + start : mine;
    for (size_t i = 0; i < test_rank % 3; i++)
        from[i] = value(test_rank, 0, i);
    bool right = moert_comm_allgatherv(test_comm, from, bytes, all) == MOERT_OK;
    for (size_t r = 0, at = 0; r < test_ranks; r++)
        for (size_t i = 0; i < r % 3; i++)
            right = right && all[at++] == value(r, 0, i);
    return right;
}

static void test_allgatherv_takes_empty_pieces_and_pieces_in_place(void **state) {
    (void)state;
    bool right = gather_uneven(false);
    right = gather_uneven(true) && right;
    ASSERT_ON_ALL(right);
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
    uint64_t *send = calloc(sent + 1, WIDTH * sizeof *send);
    uint64_t *receive = calloc(received + 1, WIDTH * sizeof *receive);
    for (size_t r = 0, at = 0; r < test_ranks; r++)
        for (size_t i = 0; i < send_rows[r] * WIDTH; i++)
            send[at++] = value(test_rank, r, i);
    bool right = moert_comm_alltoallv(test_comm, send, send_rows, receive, receive_rows,
                                      WIDTH * sizeof *send) == MOERT_OK;
    for (size_t r = 0, at = 0; r < test_ranks; r++)
        for (size_t i = 0; i < receive_rows[r] * WIDTH; i++)
            right = right && receive[at++] == value(r, test_rank, i);
    free(send);
    free(receive);
    return right;
}

static void test_alltoallv_takes_uneven_and_empty_pieces(void **state) {
    (void)state;
    ASSERT_ON_ALL(exchange_uneven());
}

static void test_pieces_above_the_limit_travel_in_several_messages(void **state) {
    (void)state;
    size_t limit = moert_comm_piece_bytes;
    moert_comm_piece_bytes = 7;
    uint64_t mine[2] = {value(test_rank, 1, 0), value(test_rank, 1, 1)}, all[2 * 256];
    bool right = moert_comm_allgather(test_comm, mine, sizeof mine, all) == MOERT_OK;
    for (size_t r = 0; r < test_ranks; r++)
        right = right && all[2 * r] == value(r, 1, 0) && all[2 * r + 1] == value(r, 1, 1);
    right = gather_uneven(false) && right;
    right = exchange_uneven() && right;
    moert_comm_piece_bytes = limit;
    ASSERT_ON_ALL(right);
}

static void test_agreement_gives_all_ranks_the_lowest_failure(void **state) {
    (void)state;
    bool right = moert_comm_agree(test_comm, MOERT_OK) == MOERT_OK;
    for (size_t bad = 0; bad < test_ranks; bad++) {
        moert_status mine = MOERT_OK;
        if (test_rank == bad)
            mine = MOERT_FAIL(ERROR_IO, "the file of rank %zu is short", test_rank);
        else if (test_rank > bad)
            mine = MOERT_FAIL(ERROR_NUMERIC, "not the lowest");
        right = moert_comm_agree(test_comm, mine) == MOERT_ERROR_IO && right;
        char text[256], prefix[128] = "";
        if (test_ranks > 1)
            snprintf(prefix, sizeof prefix, "rank %zu (%s): ", bad,
                     moert_comm_host(test_comm, bad));
        snprintf(text, sizeof text, "%sthe file of rank %zu is short", prefix, bad);
        right = right && strcmp(moert_last_error(), text) == 0;
        right = right && moert_comm_failure_is_shared();
        /* an outer agreement passes the message on as it is */
        right = moert_comm_agree(test_comm, MOERT_ERROR_IO) == MOERT_ERROR_IO && right;
        right = right && strcmp(moert_last_error(), text) == 0;
    }
    MOERT_FAIL(ERROR_IO, "another failure, of this rank alone");
    right = right && !moert_comm_failure_is_shared();
    ASSERT_ON_ALL(right);
}

static void test_split_keeps_the_order_and_names_ranks_of_the_whole(void **state) {
    (void)state;
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
    char prefix[32];
    snprintf(prefix, sizeof prefix, "rank %zu (", 2 * (count - 1) + test_rank % 2);
    right = right && moert_comm_agree(part, mine) == MOERT_ERROR_FORMAT;
    if (count > 1)
        right = right && strncmp(moert_last_error(), prefix, strlen(prefix)) == 0;
    right = right && moert_comm_failure_is_shared() == (test_ranks == 1);
    moert_comm_destroy(part);
    ASSERT_ON_ALL(right);
}

static void test_ranks_of_one_host_are_counted(void **state) {
    (void)state;
    bool right =
        moert_comm_node_count(test_comm) == 1 && moert_comm_node_size(test_comm) == test_ranks;
    right = right && moert_comm_node_rank(test_comm) == test_rank &&
            moert_comm_node(test_comm, test_ranks - 1) == 0;
    right = right && strlen(moert_comm_host(test_comm, test_ranks - 1)) > 0;
    ASSERT_ON_ALL(right);
}

/* Every three ranks as a host, also in parts of them all. */
static void test_ranks_of_one_host_may_count_as_several(void **state) {
    (void)state;
    moert_comm *whole = NULL, *odd = NULL;
    set_variable("MOERT_NODE_RANKS", "3");
    bool right = moert_comm_split(test_comm, 0, &whole) == MOERT_OK &&
                 moert_comm_split(test_comm, test_rank % 2, &odd) == MOERT_OK;
    set_variable("MOERT_NODE_RANKS", NULL);
    right = right && moert_comm_node_count(whole) == (test_ranks + 2) / 3 &&
            moert_comm_node_rank(whole) == test_rank % 3;
    for (size_t r = 0; right && r < test_ranks; r++)
        right = moert_comm_node(whole, r) == r / 3;
    for (size_t r = 0; right && r < moert_comm_size(odd); r++) {
        const size_t origin = 2 * r + test_rank % 2, first = test_rank % 2;
        right = moert_comm_node(odd, r) == origin / 3 - first / 3;
    }
    moert_comm_destroy(whole);
    moert_comm_destroy(odd);
    ASSERT_ON_ALL(right);
}

/* ---- tree sums ---- */

static float leaf(size_t leaf_index, size_t i) {
    double scale = (double)(1u << ((leaf_index + i) * 5 % 11));
    return (float)(moert_rng_normal(9, leaf_index, i) * scale);
}

/* The sum of the leaves [first, first + count) by a tree over them alone, n values in the first of
 * its rows. */
static float *serial_sum(size_t first, size_t count, size_t n) {
    float *leaves = calloc((count + 1) * n, sizeof *leaves), **rows = calloc(count, sizeof *rows);
    moert_tree_node *nodes = calloc(count, sizeof *nodes);
    for (size_t j = 0; j < count; j++) {
        nodes[j] = (moert_tree_node){j, 1};
        rows[j] = leaves + j * n;
        for (size_t i = 0; i < n; i++)
            rows[j][i] = leaf(first + j, i);
    }
    moert_tree_join(count, nodes, rows, count, leaves, n);
    free(nodes);
    free(rows);
    return leaves;
}

/* This rank's node rows; a node has the shape of a tree over its leaves alone. */
static float *make_nodes(moert_span span, size_t n) {
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    float *rows = calloc((span.count + 1) * n, sizeof *rows);
    const size_t count = moert_tree_nodes(span, nodes), end = span.first + span.count;
    for (size_t k = 0; k < count; k++) {
        const size_t size = moert_min(nodes[k].width, end - nodes[k].first);
        float *sum = serial_sum(nodes[k].first, size, n);
        memcpy(rows + k * n, sum, n * sizeof *rows);
        free(sum);
    }
    return rows;
}

/* Slices of n columns: even ones, all for the last rank, or more for each rank than for the one
 * before. */
static void cut(size_t n, size_t kind, size_t *border) {
    const size_t sum = test_ranks * (test_ranks + 1) / 2;
    for (size_t r = 0; r <= test_ranks; r++) {
        const size_t borders[] = {n * r / test_ranks, r < test_ranks ? 0 : n,
                                  n * (r * (r + 1) / 2) / sum};
        border[r] = borders[kind];
    }
}

/* The sum in slices of each kind, gathered, and in rounds of few floats. */
static bool sum_is_right(moert_span span, size_t n, const float *expected) {
    moert_span *spans = calloc(test_ranks, sizeof *spans);
    size_t *border = calloc(test_ranks + 1, sizeof *border);
    bool right = moert_comm_gather_spans(test_comm, span, spans) == MOERT_OK;
    for (size_t kind = 0; kind < 3; kind++) {
        float *rows = make_nodes(span, n);
        moert_tree_sum *sum = NULL;
        cut(n, kind, border);
        const size_t first = border[test_rank], count = border[test_rank + 1] - first;
        right = moert_tree_sum_start(test_comm, spans, rows, border, &sum) == MOERT_OK && right;
        right = moert_tree_sum_progress(sum) == MOERT_OK && right;
        right = moert_tree_sum_wait(sum) == MOERT_OK && right;
        right = memcmp(rows + first, expected + first, count * sizeof *rows) == 0 && right;
        right = moert_comm_gather_slices(test_comm, border, rows) == MOERT_OK && right;
        right = memcmp(rows, expected, n * sizeof *rows) == 0 && right;
        free(rows);
    }
    free(border);
    free(spans);
    return right;
}

/* Goes through all ways to cut `left` leaves into one span per rank, from rank `at` on. */
static bool all_spans(size_t at, size_t first, size_t total, size_t n, const float *expected,
                      moert_span mine) {
    if (at == test_ranks)
        return sum_is_right(mine, n, expected);
    bool right = true;
    size_t left = total - first;
    for (size_t count = at + 1 == test_ranks ? left : 0; count <= left; count++) {
        if (at == test_rank)
            mine = (moert_span){first, count, total};
        right = all_spans(at + 1, first + count, total, n, expected, mine) && right;
    }
    return right;
}

static void test_tree_sum_has_the_bits_of_one_rank_for_all_spans(void **state) {
    (void)state;
    enum { N = 5 };
    bool right = true;
    for (size_t total = 1; total <= 13; total++) {
        float *expected = serial_sum(0, total, N);
        right = all_spans(0, 0, total, N, expected, (moert_span){0}) && right;
        free(expected);
    }
    ASSERT_ON_ALL(right);
}

static void test_tree_sum_goes_in_rounds_over_many_columns(void **state) {
    (void)state;
    size_t n = 100001, total = 2 * test_ranks + 1, usual = moert_tree_round_floats;
    float *expected = serial_sum(0, total, n);
    size_t first = test_rank == 0 ? 0 : 2 * test_rank + 1;
    moert_span span = {first, test_rank == 0 ? 3 : 2, total};
    moert_tree_round_floats = 10000;
    bool right = sum_is_right(span, n, expected);
    moert_tree_round_floats = usual;
    free(expected);
    ASSERT_ON_ALL(right);
}

/* Sums of several columns and communicators under way at once, ended in another order. */
static void test_tree_sums_go_on_beside_each_other_and_beside_other_calls(void **state) {
    (void)state;
    enum { SUMS = 3, N = 4001 };
    const size_t usual = moert_tree_round_floats;
    const moert_span span = {test_rank, 1, test_ranks};
    moert_span *spans = calloc(test_ranks, sizeof *spans);
    size_t *border = calloc(test_ranks + 1, sizeof *border);
    float *expected = serial_sum(0, test_ranks, N), *rows[SUMS];
    moert_tree_sum *sums[SUMS] = {NULL};
    moert_comm *part = NULL;
    bool right = moert_comm_split(test_comm, 0, &part) == MOERT_OK;
    right = moert_comm_gather_spans(test_comm, span, spans) == MOERT_OK && right;
    cut(N, 0, border);
    moert_tree_round_floats = 1000;
    for (size_t i = 0; i < SUMS; i++) {
        rows[i] = make_nodes(span, N);
        for (size_t j = 0; j < N; j++)
            rows[i][j] *= (float)(1u << i);
        right = moert_tree_sum_start(i == 1 ? part : test_comm, spans, rows[i], border, &sums[i]) ==
                    MOERT_OK &&
                right;
        right = moert_comm_barrier(test_comm) == MOERT_OK && right;
    }
    const size_t first = border[test_rank], count = border[test_rank + 1] - first;
    for (size_t i = SUMS; i-- > 0;) {
        right = moert_tree_sum_progress(sums[0]) == MOERT_OK && right;
        right = moert_tree_sum_wait(sums[i]) == MOERT_OK && right;
        for (size_t j = first; j < first + count; j++)
            right = right && rows[i][j] == expected[j] * (float)(1u << i);
        free(rows[i]);
    }
    moert_tree_round_floats = usual;
    moert_comm_destroy(part);
    free(expected);
    free(border);
    free(spans);
    ASSERT_ON_ALL(right);
}

static void test_tree_sum_without_leaves_is_zero(void **state) {
    (void)state;
    float zero[3] = {0};
    bool right = sum_is_right((moert_span){0}, 3, zero);
    ASSERT_ON_ALL(right);
}

static void test_tree_sum_refuses_spans_that_leave_a_gap(void **state) {
    (void)state;
    moert_span *spans = calloc(test_ranks, sizeof *spans);
    const moert_span span = {test_rank, 1, test_ranks + 1};
    bool right = moert_comm_gather_spans(test_comm, span, spans) == MOERT_ERROR_MISMATCH;
    free(spans);
    ASSERT_ON_ALL(right && strstr(moert_last_error(), "leaves") != NULL);
}

/* ---- files ---- */

/* Entries of a folder, such as the open files of this process. */
static size_t count_files(const char *folder) {
    size_t count = 0;
    DIR *opened = opendir(folder);
    while (opened != NULL && readdir(opened) != NULL)
        count++;
    if (opened != NULL)
        closedir(opened);
    return count;
}

/* Files that tell their maker and number. */
static bool make_files(int *files, size_t count) {
    bool made = true;
    for (size_t i = 0; i < count; i++) {
        const uint64_t word = value(test_rank, count, i);
        files[i] = memfd_create("moert-test", MFD_CLOEXEC);
        made = made && write(files[i], &word, sizeof word) == sizeof word;
    }
    return made;
}

static void close_files(const int *files, size_t count) {
    for (size_t i = 0; i < count; i++)
        close(files[i]);
}

static bool hold_what_ranks_wrote(const int *all, size_t count) {
    bool right = true;
    for (size_t f = 0; f < test_ranks * count; f++) {
        uint64_t word = 0;
        right = right && pread(all[f], &word, sizeof word, 0) == sizeof word;
        right = right && word == value(f / count, count, f % count);
        right = right && fcntl(all[f], F_GETFD) == FD_CLOEXEC;
    }
    return right;
}

static void test_open_files_reach_every_rank_of_the_host(void **state) {
    (void)state;
    enum { MOST = 255 }; /* more than a message holds */
    static int mine[MOST], all[MOST * 4];
    const size_t before = count_files("/proc/self/fd");
    const size_t counts[] = {1, 3, test_ranks < 3 ? MOST : 7};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        bool right = make_files(mine, counts[i]);
        right = moert_comm_share_files(test_comm, mine, counts[i], all) == MOERT_OK && right;
        ASSERT_ON_ALL(right);
        right = hold_what_ranks_wrote(all, counts[i]);
        /* and they are the same files, not copies */
        const uint64_t news = value(test_rank, 1, 2);
        const size_t next = (test_rank + 1) % test_ranks;
        right = on_all(right); /* nobody writes before all have read */
        right = pwrite(all[next * counts[i]], &news, sizeof news, 0) == sizeof news && right;
        right = on_all(right);
        uint64_t seen = 0;
        right = pread(mine[0], &seen, sizeof seen, 0) == sizeof seen && right;
        right = right && seen == value((test_rank + test_ranks - 1) % test_ranks, 1, 2);
        close_files(mine, counts[i]);
        close_files(all, test_ranks * counts[i]);
        ASSERT_ON_ALL(right && count_files("/proc/self/fd") == before);
    }
}

static void test_files_that_a_rank_cannot_take_are_an_error_on_all_ranks(void **state) {
    (void)state;
    enum { COUNT = 9 };
    int mine[COUNT], all[COUNT * 4];
    struct rlimit limit, low;
    const size_t before = count_files("/proc/self/fd");
    bool right = make_files(mine, COUNT) && getrlimit(RLIMIT_NOFILE, &limit) == 0;
    low = limit;
    low.rlim_cur = (rlim_t)mine[COUNT - 1] + 4; /* room for the socket and some files */
    if (test_rank == test_ranks - 1)
        right = setrlimit(RLIMIT_NOFILE, &low) == 0 && right;
    moert_status status = moert_comm_share_files(test_comm, mine, COUNT, all);
    right = setrlimit(RLIMIT_NOFILE, &limit) == 0 && right;
    close_files(mine, COUNT);
    ASSERT_ON_ALL(right && status == MOERT_ERROR_MEMORY && all[0] == -1 && /* all the same */
                  strstr(moert_last_error(), "(ulimit -n)") != NULL &&
                  count_files("/proc/self/fd") == before);
    ASSERT_ON_ALL(moert_comm_share_files(test_comm, mine, 1001, NULL) == MOERT_ERROR_UNSUPPORTED);
}

/* ---- shared memory ---- */

static void test_shared_segments_are_zero_aligned_and_seen_by_peers(void **state) {
    (void)state;
    enum { COUNT = 1500 };
    moert_shared *shared = NULL;
    bool right = moert_shared_create(test_comm, COUNT * sizeof(uint64_t), &shared) == MOERT_OK;
    ASSERT_ON_ALL(right);
    size_t stride = moert_round_up(COUNT * sizeof(uint64_t), 4096);
    char *first = moert_shared_segment(shared, 0);
    for (size_t i = 0; i < test_ranks * stride; i++)
        right = right && first[i] == 0;
    right = moert_shared_sync(shared) == MOERT_OK && right;
    for (size_t r = 0; r < test_ranks; r++) {
        uint64_t *segment = moert_shared_segment(shared, r);
        right = right && (uintptr_t)segment % 4096 == 0 && (char *)segment == first + r * stride;
        /* every rank writes its stripe of every segment */
        for (size_t i = test_rank; i < COUNT; i += test_ranks)
            segment[i] = value(test_rank, r, i);
    }
    right = moert_shared_sync(shared) == MOERT_OK && right;
    for (size_t r = 0; r < test_ranks; r++)
        for (size_t i = 0; i < COUNT; i++)
            right = right &&
                    ((uint64_t *)moert_shared_segment(shared, r))[i] == value(i % test_ranks, r, i);
    right = on_all(right);
    moert_shared_destroy(shared);
    assert_true(right);
}

/* How many mappings of this process have this text in their line. */
static size_t count_mappings(const char *part) {
    char line[4096];
    size_t count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        count += strstr(line, part) != NULL;
    if (maps != NULL)
        fclose(maps);
    return count;
}

static void test_shared_memory_has_no_name_and_keeps_no_file_open(void **state) {
    (void)state;
    moert_shared *shared = NULL;
    const size_t files = count_files("/proc/self/fd"), before = count_mappings("memfd:moert");
    bool right = moert_shared_create(test_comm, 100, &shared) == MOERT_OK;
    right = right && count_mappings("memfd:moert (deleted)") == before + 1;
    right = count_files("/proc/self/fd") == files && right;
    right = on_all(right);
    moert_shared_destroy(shared);
    ASSERT_ON_ALL(right && count_mappings("memfd:moert") == before);
}

/* /dev/shm, which MPI windows would need, and the machine's memory are both smaller. */
static void test_untouched_shared_memory_costs_nothing(void **state) {
    (void)state;
    const size_t bytes = (size_t)1 << 40;
    moert_shared *shared = NULL;
    bool right = moert_shared_create(test_comm, bytes, &shared) == MOERT_OK;
    ASSERT_ON_ALL(right);
    for (size_t r = 0; r < test_ranks; r++)
        ((uint64_t *)moert_shared_segment(shared, r))[bytes / 8 - 1 - test_rank] = value(r, 1, 0);
    right = moert_shared_sync(shared) == MOERT_OK;
    for (size_t r = 0; r < test_ranks; r++)
        for (size_t from = 0; from < test_ranks; from++)
            right = right && ((uint64_t *)moert_shared_segment(shared, r))[bytes / 8 - 1 - from] ==
                                 value(r, 1, 0);
    right = on_all(right);
    moert_shared_destroy(shared);
    assert_true(right);
}

static void test_memory_out_of_reach_is_an_error_on_all_ranks(void **state) {
    (void)state;
    moert_shared *shared = NULL;
    const size_t files = count_files("/proc/self/fd"), before = count_mappings("memfd:moert");
    const bool last = test_rank == test_ranks - 1;
    if (test_ranks == 1) /* opens nothing */
        return;
    moert_memory_processes = last ? "/nowhere" : "/proc";
    bool right = moert_shared_create(test_comm, 100, &shared) == MOERT_ERROR_UNSUPPORTED;
    right = right && strstr(moert_last_error(), "out of reach: No such file") != NULL;
    moert_memory_processes = "/proc";
    right = shared == NULL && count_mappings("memfd:moert") == before && right;
    ASSERT_ON_ALL(right && count_files("/proc/self/fd") == files);
}

/* A folder of processes in which any file of process `pid` is one regular file. */
static bool make_processes(const char *folder, int pid) {
    char path[128];
    snprintf(path, sizeof path, "%s/%d", folder, pid);
    bool made = symlink(".", path) == 0;
    snprintf(path, sizeof path, "%s/fd", folder);
    made = made && mkdir(path, 0700) == 0;
    for (int file = 0; file < 256; file++) {
        snprintf(path, sizeof path, "%s/fd/%d", folder, file);
        made = made && symlink("/proc/self/exe", path) == 0;
    }
    return made;
}

/* In another container the numbers of a process and of its file may be another's. */
static void test_another_file_under_the_same_numbers_is_not_taken(void **state) {
    (void)state;
    moert_shared *shared = NULL;
    char folder[] = "/tmp/moert-comm-XXXXXX";
    int first = (int)getpid();
    if (test_ranks == 1)
        return;
    bool right = moert_comm_broadcast(test_comm, 0, &first, sizeof first) == MOERT_OK;
    right = mkdtemp(folder) != NULL && make_processes(folder, first) && right;
    moert_memory_processes = test_rank == test_ranks - 1 ? folder : "/proc";
    right = moert_shared_create(test_comm, 100, &shared) == MOERT_ERROR_UNSUPPORTED && right;
    right = right && strstr(moert_last_error(), "another file is in its place") != NULL;
    moert_memory_processes = "/proc";
    ASSERT_ON_ALL(moert_remove_tree(folder) == MOERT_OK && right && shared == NULL);
}

static void test_shared_memory_that_does_not_fit_is_an_error_on_all_ranks(void **state) {
    (void)state;
    moert_shared *shared = NULL;
    bool right = moert_shared_create(test_comm, (size_t)1 << 50, &shared) == MOERT_ERROR_MEMORY;
    right = moert_shared_create(test_comm, SIZE_MAX, &shared) == MOERT_ERROR_MEMORY && right;
    ASSERT_ON_ALL(right && shared == NULL);
}

static void test_a_limit_of_file_sizes_is_named(void **state) {
    (void)state;
    moert_shared *shared = NULL;
    struct rlimit before, low;
    bool right = getrlimit(RLIMIT_FSIZE, &before) == 0;
    low = before;
    low.rlim_cur = 1 << 20;
    right = setrlimit(RLIMIT_FSIZE, &low) == 0 && right;
    right = moert_shared_create(test_comm, 1 << 20, &shared) == MOERT_ERROR_MEMORY && right;
    right = right && strstr(moert_last_error(), "exceed `ulimit -f`, 1048576 bytes") != NULL;
    right = setrlimit(RLIMIT_FSIZE, &before) == 0 && right;
    ASSERT_ON_ALL(right && shared == NULL);
}

static void test_destroy_takes_null(void **state) {
    (void)state;
    moert_comm_destroy(NULL);
    moert_shared_destroy(NULL);
}

int main(int count, char **arguments) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_broadcast_reaches_every_rank_from_every_root),
        cmocka_unit_test(test_allgatherv_takes_empty_pieces_and_pieces_in_place),
        cmocka_unit_test(test_alltoallv_takes_uneven_and_empty_pieces),
        cmocka_unit_test(test_pieces_above_the_limit_travel_in_several_messages),
        cmocka_unit_test(test_agreement_gives_all_ranks_the_lowest_failure),
        cmocka_unit_test(test_split_keeps_the_order_and_names_ranks_of_the_whole),
        cmocka_unit_test(test_ranks_of_one_host_are_counted),
        cmocka_unit_test(test_ranks_of_one_host_may_count_as_several),
        cmocka_unit_test(test_tree_sum_has_the_bits_of_one_rank_for_all_spans),
        cmocka_unit_test(test_tree_sum_goes_in_rounds_over_many_columns),
        cmocka_unit_test(test_tree_sums_go_on_beside_each_other_and_beside_other_calls),
        cmocka_unit_test(test_tree_sum_without_leaves_is_zero),
        cmocka_unit_test(test_tree_sum_refuses_spans_that_leave_a_gap),
        cmocka_unit_test(test_open_files_reach_every_rank_of_the_host),
        cmocka_unit_test(test_files_that_a_rank_cannot_take_are_an_error_on_all_ranks),
        cmocka_unit_test(test_shared_segments_are_zero_aligned_and_seen_by_peers),
        cmocka_unit_test(test_shared_memory_has_no_name_and_keeps_no_file_open),
        cmocka_unit_test(test_untouched_shared_memory_costs_nothing),
        cmocka_unit_test(test_memory_out_of_reach_is_an_error_on_all_ranks),
        cmocka_unit_test(test_another_file_under_the_same_numbers_is_not_taken),
        cmocka_unit_test(test_shared_memory_that_does_not_fit_is_an_error_on_all_ranks),
        cmocka_unit_test(test_a_limit_of_file_sizes_is_named),
        cmocka_unit_test(test_destroy_takes_null),
    };
    if (!mpi_tests_begin(count, arguments))
        return 1;
    return mpi_tests_end(cmocka_run_group_tests_name("comm", tests, NULL, NULL));
}
