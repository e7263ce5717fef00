// run: check=1,2 all=3,4,2san device=0
/* Open files and shared memory between the ranks of a host, on any number of ranks. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/internal.h"
#include "io/durable.h"
#include "support/files.h"
#include "support/mpi.h"

/* ---- files ---- */

enum { MOST = 255 }; /* more files than one message carries */

/* Creates files whose contents identify this rank and the index of the file. */
static bool make_files(int *files, size_t count) {
    bool made = true;
    for (size_t i = 0; i < count; i++) {
        const uint64_t value = mpi_value(test_rank, count, i);
        files[i] = memfd_create("moert-test", MFD_CLOEXEC);
        made = made && write(files[i], &value, sizeof value) == sizeof value;
    }
    return made;
}

static void close_files(const int *files, size_t count) {
    for (size_t i = 0; i < count; i++)
        close(files[i]);
}

TEST(test_open_files_reach_every_rank_of_the_host) {
    static int mine[MOST], all[MOST * 4];
    const size_t before = count_files("/proc/self/fd", ""),
                 counts[] = {1, 3, test_ranks < 3 ? MOST : 7};
    for (size_t i = 0; i < MOERT_COUNT(counts); i++) {
        const size_t count = counts[i], next = (test_rank + 1) % test_ranks,
                     last = (test_rank + test_ranks - 1) % test_ranks;
        const uint64_t update = mpi_value(test_rank, 1, 2);
        uint64_t value = 0;
        bool right = make_files(mine, count);
        right = moert_comm_share_files(test_comm, mine, count, all) == MOERT_OK && right;
        ASSERT_ON_ALL(right);
        for (size_t f = 0; f < test_ranks * count; f++)
            right = right && pread(all[f], &value, sizeof value, 0) == sizeof value &&
                    value == mpi_value(f / count, count, f % count) &&
                    fcntl(all[f], F_GETFD) == FD_CLOEXEC;
        /* checks that the ranks share files instead of copies: the last rank writes, and the owner
         * reads */
        right = on_all(right); /* no rank writes before all have read */
        right = pwrite(all[next * count], &update, sizeof update, 0) == sizeof update && right;
        right = on_all(right);
        right = pread(mine[0], &value, sizeof value, 0) == sizeof value && right;
        right = right && value == mpi_value(last, 1, 2);
        close_files(mine, count);
        close_files(all, test_ranks * count);
        ASSERT_ON_ALL(right && count_files("/proc/self/fd", "") == before);
    }
}

TEST(test_files_that_a_rank_cannot_take_are_an_error_on_all_ranks) {
    enum { COUNT = 9 };
    int mine[COUNT], all[COUNT * 4];
    struct rlimit limit, low;
    const size_t before = count_files("/proc/self/fd", "");
    bool right = getrlimit(RLIMIT_NOFILE, &limit) == 0;
    right = make_files(mine, COUNT) && right;
    low = limit;
    /* leaves room for the socket and only some of the files */
    low.rlim_cur = (rlim_t)mine[COUNT - 1] + 4;
    if (test_rank == test_ranks - 1)
        right = setrlimit(RLIMIT_NOFILE, &low) == 0 && right;
    moert_status status = moert_comm_share_files(test_comm, mine, COUNT, all);
    right = setrlimit(RLIMIT_NOFILE, &limit) == 0 && right;
    close_files(mine, COUNT);
    ASSERT_FAILS_ON_ALL(status, MOERT_ERROR_MEMORY, "(ulimit -n)");
    ASSERT_ON_ALL(right && all[0] == -1 && count_files("/proc/self/fd", "") == before);
    ASSERT_ON_ALL(moert_comm_share_files(test_comm, mine, 1001, NULL) == MOERT_ERROR_UNSUPPORTED);
}

/* ---- shared memory ---- */

/* The number of this process's mappings whose line in /proc/self/maps contains `part`. */
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

/* The memory has no name, and keeps no file open. */
TEST(test_shared_segments_are_zero_aligned_and_seen_by_peers) {
    enum { COUNT = 1500 };
    moert_shared *shared = NULL;
    const size_t files = count_files("/proc/self/fd", ""), before = count_mappings("memfd:moert");
    ASSERT_OK_ON_ALL(moert_shared_create(test_comm, COUNT * sizeof(uint64_t), &shared));
    bool right = count_mappings("memfd:moert (deleted)") == before + 1 &&
                 count_files("/proc/self/fd", "") == files;
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
            segment[i] = mpi_value(test_rank, r, i);
    }
    right = moert_shared_sync(shared) == MOERT_OK && right;
    for (size_t r = 0; r < test_ranks; r++)
        for (size_t i = 0; i < COUNT; i++)
            right = right && ((uint64_t *)moert_shared_segment(shared, r))[i] ==
                                 mpi_value(i % test_ranks, r, i);
    right = on_all(right);
    moert_shared_destroy(shared);
    ASSERT_ON_ALL(right && count_mappings("memfd:moert") == before);
}

/* Checks that all ranks fail to create shared memory, and that no file or mapping is left. */
static void expect_refusal(size_t bytes, moert_status status, const char *text) {
    moert_shared *shared = NULL;
    const size_t files = count_files("/proc/self/fd", ""), before = count_mappings("memfd:moert");
    const moert_status got = moert_shared_create(test_comm, bytes, &shared);
    moert_memory_processes = "/proc";
    ASSERT_FAILS_ON_ALL(got, status, text);
    ASSERT_ON_ALL(shared == NULL && count_mappings("memfd:moert") == before &&
                  count_files("/proc/self/fd", "") == files);
}

/* Each rank reserves 1 TiB: more than the machine's memory, and more than /dev/shm, in which MPI
 * would place its windows. */
TEST(test_untouched_shared_memory_costs_nothing) {
    if (getenv("TEST_EMULATED") != NULL)
        SKIP("QEMU 7 reserves memory for what is mapped, and has a record of each page");
    const size_t bytes = (size_t)1 << 40;
    moert_shared *shared = NULL;
    ASSERT_OK_ON_ALL(moert_shared_create(test_comm, bytes, &shared));
    for (size_t r = 0; r < test_ranks; r++)
        ((uint64_t *)moert_shared_segment(shared, r))[bytes / 8 - 1 - test_rank] =
            mpi_value(r, 1, 0);
    bool right = moert_shared_sync(shared) == MOERT_OK;
    for (size_t r = 0; r < test_ranks; r++)
        for (size_t from = 0; from < test_ranks; from++)
            right = right && ((uint64_t *)moert_shared_segment(shared, r))[bytes / 8 - 1 - from] ==
                                 mpi_value(r, 1, 0);
    right = on_all(right);
    moert_shared_destroy(shared);
    assert_true(right);
}

/* Creates a stand-in for /proc in which every open file of process `pid` is the same regular
 * file. */
static bool make_processes(const char *directory, int pid) {
    bool made = symlink(".", titled("%s/%d", directory, pid)) == 0 &&
                mkdir(titled("%s/fd", directory), 0700) == 0;
    for (int file = 0; file < 256; file++)
        made = made && symlink("/proc/self/exe", titled("%s/fd/%d", directory, file)) == 0;
    return made;
}

/* If ranks run in different containers, the same process ID and descriptor may name different
 * files. A single rank opens no shared files. */
TEST(test_memory_out_of_reach_or_another_file_in_its_place_is_refused_on_all_ranks) {
    char directory[] = "/tmp/moert-comm-XXXXXX";
    int first = (int)getpid();
    if (test_ranks == 1)
        return;
    bool made = moert_comm_broadcast(test_comm, 0, &first, sizeof first) == MOERT_OK;
    made = mkdtemp(directory) != NULL && make_processes(directory, first) && made;
    ASSERT_ON_ALL(made);
    const char *const processes[] = {"/nowhere", directory};
    for (int i = 0; i < 2; i++) {
        moert_memory_processes = test_rank == test_ranks - 1 ? processes[i] : "/proc";
        expect_refusal(100, MOERT_ERROR_UNSUPPORTED,
                       i == 0 ? "out of reach: No such file" : "another file is in its place");
    }
    ASSERT_OK_ON_ALL(moert_remove_tree(directory));
}

TEST(test_shared_memory_that_does_not_fit_is_an_error_on_all_ranks) {
    struct rlimit before, low;
    expect_refusal((size_t)1 << 50, MOERT_ERROR_MEMORY, "");
    expect_refusal(SIZE_MAX, MOERT_ERROR_MEMORY, "");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    low = (struct rlimit){1 << 20, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    expect_refusal(1 << 20, MOERT_ERROR_MEMORY, "exceed `ulimit -f`, 1048576 bytes");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    moert_shared_destroy(NULL);
}

MPI_TESTS(NULL, NULL)
