// run: np=1 sanitize=1
/* Text files and directories that are whole or not there. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/durable.h"
#include "support/files.h"

static int exists(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0;
}

static void assert_text(const char *path, const char *expected) {
    char *text = NULL;
    ASSERT_OK(moert_read_text(path, 1000, &text));
    assert_string_equal(owned(text, free), expected);
}

TEST(test_write_replaces_a_text_and_leaves_no_temporary_file) {
    const char *path = in_folder("state.json");
    ASSERT_OK(moert_durable_write(path, "one"));
    assert_text(path, "one");
    ASSERT_OK(moert_durable_write(path, ""));
    assert_text(path, "");
    assert_false(exists(in_folder("state.json.tmp")));
}

TEST(test_write_into_an_absent_folder_says_what_failed) {
    const char *path = in_folder("absent/state.json");
    ASSERT_FAILS(moert_durable_write(path, "one"), MOERT_ERROR_IO, strerror(ENOENT));
    assert_non_null(strstr(moert_last_error(), path));
}

TEST(test_a_write_that_does_not_fit_keeps_the_older_text) {
    const char *path = in_folder("full.json");
    struct rlimit before, small;
    ASSERT_OK(moert_durable_write(path, "older"));
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 4;
    setrlimit(RLIMIT_FSIZE, &small);
    moert_status status = moert_durable_write(path, "a longer text");
    setrlimit(RLIMIT_FSIZE, &before);
    ASSERT_FAILS(status, MOERT_ERROR_IO, strerror(EFBIG));
    assert_text(path, "older");
    assert_false(exists(in_folder("full.json.tmp")));
}

TEST(test_write_over_a_folder_fails_and_cleans_up) {
    const char *path = in_folder("taken");
    ASSERT_OK(moert_make_folders(path));
    ASSERT_FAILS(moert_durable_write(path, "text"), MOERT_ERROR_IO, path);
    assert_false(exists(in_folder("taken.tmp")));
}

TEST(test_settle_gives_a_file_its_name_or_removes_it) {
    char *temporary = owned(strdup(in_folder("settled.tmp")), free);
    char *path = owned(strdup(in_folder("settled")), free);
    char *target = owned(strdup(in_folder("a-target")), free);
    ASSERT_OK(moert_make_folders(target));
    ASSERT_OK(moert_durable_write(temporary, "one"));
    ASSERT_OK(moert_durable_settle(temporary, path, MOERT_OK));
    assert_text(path, "one");
    ASSERT_OK(moert_durable_write(temporary, "two"));
    assert_int_equal(moert_durable_settle(temporary, path, MOERT_ERROR_COMM), MOERT_ERROR_COMM);
    assert_text(path, "one");
    assert_false(exists(temporary));
    ASSERT_OK(moert_durable_write(temporary, "two"));
    ASSERT_FAILS(moert_durable_settle(temporary, target, MOERT_OK), MOERT_ERROR_IO, target);
    assert_false(exists(temporary));
}

TEST(test_read_refuses_what_is_no_short_text) {
    char *text;
    const char *path = in_folder("text");
    ASSERT_FAILS(moert_read_text(in_folder("absent"), 10, &text), MOERT_ERROR_IO, "absent");
    ASSERT_FAILS(moert_read_text(test_folder, 10, &text), MOERT_ERROR_IO, test_folder);
    ASSERT_OK(moert_durable_write(path, "0123456789a"));
    ASSERT_FAILS(moert_read_text(path, 10, &text), MOERT_ERROR_FORMAT, "limit 10");
    FILE *file = fopen(path, "w");
    assert_int_equal(fwrite("a\0b", 1, 3, file), 3);
    fclose(file);
    ASSERT_FAILS(moert_read_text(path, 10, &text), MOERT_ERROR_FORMAT, "NUL");
}

TEST(test_folders_are_made_with_their_parents) {
    ASSERT_OK(moert_make_folders(in_folder("a/b//c/")));
    assert_true(exists(in_folder("a/b/c")));
    ASSERT_OK(moert_make_folders(in_folder("a/b/c")));
    ASSERT_OK(moert_make_folders("/"));
    ASSERT_FAILS(moert_make_folders(""), MOERT_ERROR_IO, strerror(ENOENT));
    ASSERT_OK(moert_durable_write(in_folder("a/file"), ""));
    ASSERT_FAILS(moert_make_folders(in_folder("a/file/b")), MOERT_ERROR_IO, "a/file");
}

TEST(test_a_tree_is_removed_but_not_what_its_links_lead_to) {
    const char *kept = in_folder("kept");
    ASSERT_OK(moert_make_folders(in_folder("tree/deep/er")));
    ASSERT_OK(moert_durable_write(kept, "kept"));
    ASSERT_OK(moert_durable_write(in_folder("tree/deep/file"), "gone"));
    assert_int_equal(symlink(kept, in_folder("tree/link")), 0);
    assert_int_equal(symlink(test_folder, in_folder("tree/deep/loop")), 0);
    ASSERT_OK(moert_remove_tree(in_folder("tree")));
    assert_false(exists(in_folder("tree")));
    assert_text(in_folder("kept"), "kept");
    ASSERT_OK(moert_remove_tree(in_folder("tree")));
}

static void make_checkpoint(const char *name, const char *text) {
    char path[PATH_MAX];
    ASSERT_OK(moert_make_folders(in_folder(name)));
    snprintf(path, sizeof path, "%s/%s/state", test_folder, name);
    ASSERT_OK(moert_durable_write(path, text));
}

TEST(test_commit_gives_a_folder_its_name_and_replaces_an_older_one) {
    make_checkpoint("step.tmp", "first");
    ASSERT_OK(moert_durable_commit(in_folder("step.tmp"), in_folder("step/")));
    assert_text(in_folder("step/state"), "first");
    make_checkpoint("step.old", "left by a crash");
    make_checkpoint("step.tmp", "second");
    ASSERT_OK(moert_durable_commit(in_folder("step.tmp/"), in_folder("step")));
    assert_text(in_folder("step/state"), "second");
    assert_false(exists(in_folder("step.tmp")));
    assert_false(exists(in_folder("step.old")));
}

TEST(test_a_commit_that_fails_keeps_the_older_folder) {
    make_checkpoint("step", "older");
    ASSERT_FAILS(moert_durable_commit(in_folder("absent"), in_folder("step")), MOERT_ERROR_IO,
                 "absent");
    assert_text(in_folder("step/state"), "older");
    /* a folder cannot move into itself: the older one has been put aside and must come back */
    ASSERT_FAILS(moert_durable_commit(test_folder, in_folder("step")), MOERT_ERROR_IO, "renamed");
    assert_text(in_folder("step/state"), "older");
    assert_false(exists(in_folder("step.old")));
}

TESTS(make_test_folder, remove_test_folder)
