// run: check=1 all=1san device=0
/* Only regular files are opened, at once; a line is appended whole or not at all. */
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "support/files.h"

static const struct {
    const char *name, *kind;
} others[] = {{"pipe", "pipe"}, {".", "directory"}, {"/dev/zero", "device"}};

static const char *path_of(size_t i) {
    return others[i].name[0] == '/' ? others[i].name : in_directory(others[i].name);
}

TEST(test_only_regular_files_are_opened_and_appended_to) {
    size_t bytes = 0;
    int file = -1;
    assert_int_equal(mkfifo(in_directory("pipe"), 0600), 0);
    for (size_t i = 0; i < MOERT_COUNT(others); i++) {
        ASSERT_FAILS(moert_file_open(path_of(i), &file, &bytes), MOERT_ERROR_IO, others[i].kind);
        assert_int_equal(file, -1);
        ASSERT_FAILS(moert_file_append(path_of(i), "line\n"), MOERT_ERROR_IO, others[i].kind);
    }
    ASSERT_FAILS(moert_file_open(in_directory("none"), &file, &bytes), MOERT_ERROR_IO,
                 "No such file");
    ASSERT_OK(moert_file_open(write_text("text", "seven b"), &file, &bytes));
    assert_int_equal(bytes, 7);
    moert_close_files(&file, 1);
    ASSERT_OK(moert_file_append(in_directory("lines"), "one\n"));
    ASSERT_OK(moert_file_append(in_directory("lines"), "two\n"));
    assert_string_equal(read_file(in_directory("lines"), NULL), "one\ntwo\n");
}

TEST(test_a_line_that_does_not_fit_is_taken_back) {
    struct rlimit before, limit;
    write_text("full", "one\n");
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    limit = before;
    limit.rlim_cur = 6; /* stands in for a full disk: 2 more bytes fit */
    setrlimit(RLIMIT_FSIZE, &limit);
    const moert_status status = moert_file_append(in_directory("full"), "two\n");
    setrlimit(RLIMIT_FSIZE, &before);
    ASSERT_FAILS(status, MOERT_ERROR_IO, "is the disk full?");
    assert_string_equal(read_file(in_directory("full"), NULL), "one\n");
}

TESTS(make_test_directory, remove_test_directory)
