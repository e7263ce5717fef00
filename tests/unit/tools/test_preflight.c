// run: check=1 all=3,1san,2san device=0
/* Preflight: the findings that it reports about made-up clusters, and its measurements of links
 * between real ranks. */
#include "support/mpi.h"
#include "tools/preflight/preflight.h"

enum { NODES = 4, EACH = 2, RANKS = NODES * EACH };

/* Four nodes of two equal ranks. Links within a node carry 10 GB/s, links between nodes 1 GB/s. */
static moert_preflight cluster;

static int make_cluster(void **state) {
    (void)state;
    cluster = (moert_preflight){RANKS, test_alloc(RANKS * sizeof *cluster.rank),
                                test_alloc(RANKS * RANKS * sizeof *cluster.links)};
    for (size_t r = 0; r < RANKS; r++) {
        moert_preflight_rank *rank = &cluster.rank[r];
        rank->node = r / EACH;
        rank->cores = 8;
        rank->watched = true;
        rank->timeout_s = 60;
        rank->shm_bytes = rank->memory_bytes = (size_t)8 << 30;
        rank->rates = (moert_rates){.gemm_gflops = 100.0, .copy_gbps = 20.0};
        snprintf(rank->host, sizeof rank->host, "node%zu", rank->node);
        snprintf(rank->commit, sizeof rank->commit, "0.1.0 abc");
        for (size_t other = 0; other < RANKS; other++) {
            const bool inside = other / EACH == rank->node;
            if (other != r && (inside || other % EACH == r % EACH))
                cluster.links[r * RANKS + other] =
                    inside ? (moert_link){2.0, 10.0} : (moert_link){30.0, 1.0};
        }
    }
    return 0;
}

static void set_link(size_t a, size_t b, moert_link link) {
    cluster.links[a * RANKS + b] = cluster.links[b * RANKS + a] = link;
}

/* Returns all findings as lines "WRONG text" or "note text", in a static buffer. */
static const char *judged(void) {
    static char lines[4096];
    json_t *findings, *finding;
    size_t i, used = 0;
    lines[0] = '\0';
    ASSERT_OK(moert_preflight_judge(&cluster, 0.6, &findings));
    json_array_foreach(findings, i, finding) {
        assert_true(json_string_length(json_object_get(finding, "hint")) > 0);
        used += (size_t)snprintf(lines + used, sizeof lines - used, "%s %s\n",
                                 json_is_true(json_object_get(finding, "wrong")) ? "WRONG" : "note",
                                 json_string_value(json_object_get(finding, "text")));
    }
    json_decref(findings);
    return lines;
}

TEST_WITH(test_equal_ranks_have_no_findings, make_cluster, NULL) {
    assert_string_equal(judged(), "");
    assert_within(cluster.rank[3].inside, 10.0, 0.0);
    assert_within(cluster.rank[3].between, 1.0, 0.0);
    assert_within(cluster.rank[3].between_us, 30.0, 0.0);
}

TEST_WITH(test_another_build_is_named_with_both_commits, make_cluster, NULL) {
    snprintf(cluster.rank[5].commit, sizeof cluster.rank[5].commit, "0.1.0 def");
    assert_string_equal(judged(),
                        "WRONG rank 5 (node2): another moert: 0.1.0 def; the others: 0.1.0 abc\n");
}

TEST_WITH(test_ranks_that_differ_alike_are_one_finding, make_cluster, NULL) {
    for (size_t r = 2; r < 5; r++)
        snprintf(cluster.rank[r].settings, sizeof cluster.rank[r].settings, "MOERT_BF16=widened");
    assert_string_equal(judged(), "WRONG node1, rank 4 (node2): other MOERT_* variables: "
                                  "MOERT_BF16=widened; the others: none\n");
}

TEST_WITH(test_a_slow_device_is_named_with_its_fraction_of_the_median, make_cluster, NULL) {
    cluster.rank[6].rates.gemm_gflops = 52.0;
    assert_string_equal(
        judged(), "WRONG rank 6 (node3): slow: 0.52 of the median GEMM rate (52 of 100 GFLOP/s)\n");
    cluster.rank[6].rates.gemm_gflops = 63.0; /* 63 % of the median rate is just above the limit */
    assert_string_equal(judged(), "");
}

TEST_WITH(test_a_device_that_computes_wrongly_is_named, make_cluster, NULL) {
    for (size_t r = 0; r < RANKS; r++) {
        cluster.rank[r].runs = 1000;
        snprintf(cluster.rank[r].results, sizeof cluster.rank[r].results, "0123");
    }
    assert_string_equal(judged(), "");
    cluster.rank[3].wrong_runs = 2;
    assert_string_equal(judged(), "WRONG rank 3 (node1): computes wrongly: 2 of 1000 equal GEMMs "
                                  "have other bits\n");
    cluster.rank[3].wrong_runs = 0;
    snprintf(cluster.rank[6].results, sizeof cluster.rank[6].results, "0124");
    assert_string_equal(judged(), "WRONG rank 6 (node3): other results of the same GEMM: 0124; the "
                                  "others: 0123\n");
}

TEST_WITH(test_a_slow_node_is_named_and_its_peers_are_not, make_cluster, NULL) {
    for (size_t r = 0; r < RANKS; r++)
        if (r / EACH != 2)
            set_link(r, 2 * EACH + r % EACH, (moert_link){30.0, 0.31});
    assert_string_equal(judged(), "WRONG node2: slow: 0.31 of the median bandwidth to the other "
                                  "nodes (0.31 of 1 GB/s)\n");
}

TEST_WITH(test_a_slow_link_between_good_nodes_is_named, make_cluster, NULL) {
    set_link(1, 7, (moert_link){30.0, 0.25});
    assert_string_equal(judged(), "WRONG the link of ranks 1 and 7 (node0, node3): slow: 0.25 of "
                                  "the median bandwidth (0.25 of 1 GB/s)\n");
}

TEST_WITH(test_late_messages_are_found, make_cluster, NULL) {
    set_link(4, 5, (moert_link){900.0, 10.0});
    assert_string_equal(judged(), "WRONG node2: late: a small message inside of the node takes 900 "
                                  "us, the median is 2 us\n");
}

TEST_WITH(test_what_a_host_lacks_is_named, make_cluster, NULL) {
    cluster.rank[2].skew_s = cluster.rank[3].skew_s = -3.25;
    cluster.rank[4].shm_bytes = cluster.rank[5].shm_bytes = 20 << 20;
    cluster.rank[6].memory_bytes = cluster.rank[7].memory_bytes = 512 << 20;
    cluster.rank[0].watched = cluster.rank[1].watched = false;
    assert_string_equal(
        judged(), "WRONG node0: the watchdog does not reach the ranks of this host\n"
                  "WRONG node1: the clock is 3.2 s behind rank 0's\n"
                  "WRONG node2: only 20 MiB free in /dev/shm; each rank of the host needs at "
                  "least 16 MiB\n"
                  "WRONG node3: only 512 MiB of memory available; each rank of the host needs "
                  "at least 1024 MiB\n");
}

TEST_WITH(test_notes_are_not_wrong, make_cluster, NULL) {
    for (size_t r = 0; r < RANKS; r++)
        cluster.rank[r].timeout_s = 0;
    cluster.rank[7].shared = true;
    cluster.rank[7].node = 2; /* now node 2 has three ranks, and node 3 has one */
    const char *lines = judged();
    assert_non_null(strstr(lines, "note the watchdog is off"));
    assert_non_null(strstr(lines, "note rank 7 (node3): cores are shared with other ranks"));
    assert_non_null(strstr(lines, "note node2 has 3 ranks, node0 has 2"));
}

TEST_WITH(test_of_two_nodes_neither_is_blamed_for_their_link, make_cluster, NULL) {
    cluster.ranks = 2;
    cluster.rank[1].node = 1;
    cluster.links[1] = cluster.links[2] = (moert_link){500.0, 0.001};
    assert_string_equal(judged(), "");
    /* a device is slow, so the finding names the node of that device */
    cluster.rank[1].rates.gemm_gflops = 10.0;
    snprintf(cluster.rank[1].host, sizeof cluster.rank[1].host, "node1");
    assert_non_null(strstr(judged(), "WRONG node1: slow: 0.10 of the median GEMM rate"));
}

/* ---- the schedule of pairs ---- */

TEST(test_every_pair_is_measured_once) {
    for (size_t count = 1; count <= 9; count++) {
        unsigned measured[9][9] = {{0}};
        for (size_t round = 0; round < moert_links_rounds(count); round++)
            for (size_t i = 0; i < count; i++) {
                const size_t other = moert_links_partner(count, round, i);
                assert_true(other <= count && other != i);
                if (other == count)
                    continue;
                assert_int_equal(moert_links_partner(count, round, other), i);
                measured[i][other]++;
            }
        for (size_t i = 0; i < count; i++)
            for (size_t other = 0; other < count; other++)
                assert_int_equal(measured[i][other], i != other);
    }
}

TEST(test_links_are_the_same_from_both_sides) {
    moert_link links[16], all[16 * 16];
    bool good = true;
    ASSERT_OK_ON_ALL(moert_links_measure(test_comm, 0.2, links));
    ASSERT_OK_ON_ALL(moert_comm_allgather(test_comm, links, test_ranks * sizeof *links, all));
    for (size_t a = 0; a < test_ranks; a++)
        for (size_t b = 0; b < test_ranks; b++) {
            const moert_link *there = &all[a * test_ranks + b], *back = &all[b * test_ranks + a];
            good = good && there->us == back->us && there->gbps == back->gbps &&
                   (a == b ? there->gbps == 0.0 : there->gbps > 0.0 && there->us > 0.0);
        }
    ASSERT_ON_ALL(good);
}

MPI_TESTS(NULL, NULL)
