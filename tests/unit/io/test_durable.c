// run: check=1 all=1san device=0
/* After a failure, text files, lines and directories are either whole or absent. A JSON file is
 * also whole or absent, whichever allocation of jansson fails. Opening anything but a regular file
 * fails at once. */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "io/durable.h"
#include "io/json.h"
#include "io/manifest.h"
#include "support/files.h"
#include "tools/common/table.h"

static bool exists(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0;
}

static void assert_text(const char *path, const char *expected) {
    char *text = NULL;
    ASSERT_OK(moert_read_text(path, 1000, &text));
    assert_string_equal(owned(text, free), expected);
}

TEST(test_write_replaces_a_text_and_leaves_no_temporary_file) {
    const char *path = in_directory("state.json");
    ASSERT_OK(moert_durable_write(path, "one"));
    assert_text(path, "one");
    ASSERT_OK(moert_durable_write(path, ""));
    assert_text(path, "");
    assert_false(exists(in_directory("state.json.tmp")));
}

TEST(test_a_write_that_fails_names_the_path_and_cleans_up) {
    const char *path = in_directory("absent/state.json"), *taken = in_directory("taken");
    ASSERT_FAILS(moert_durable_write(path, "one"), MOERT_ERROR_IO, strerror(ENOENT));
    assert_non_null(strstr(moert_last_error(), path));
    ASSERT_OK(moert_make_directories(taken));
    ASSERT_FAILS(moert_durable_write(taken, "text"), MOERT_ERROR_IO, taken);
    assert_false(exists(in_directory("taken.tmp")));
}

TEST(test_what_does_not_fit_keeps_the_older_text) {
    const char *path = in_directory("full.json");
    ASSERT_OK(moert_durable_write(path, "older"));
    limit_files(7);
    const moert_status whole = moert_durable_write(path, "a longer text");
    const bool reason = strstr(moert_last_error(), strerror(EFBIG)) != NULL;
    const moert_status line = moert_file_append(path, "line\n");
    limit_files(RLIM_INFINITY);
    assert_true(whole == MOERT_ERROR_IO && reason);
    ASSERT_FAILS(line, MOERT_ERROR_IO, "is the disk full?");
    assert_text(path, "older");
    assert_false(exists(in_directory("full.json.tmp")));
}

TEST(test_only_regular_files_are_opened_and_appended_to) {
    const struct {
        const char *path, *message;
    } others[] = {{in_directory("pipe"), "pipe"},
                  {test_directory, "directory"},
                  {"/dev/zero", "device"},
                  {in_directory("nowhere/none"), "No such file"}};
    size_t bytes = 0;
    int file = -1;
    assert_int_equal(mkfifo(in_directory("pipe"), 0600), 0);
    for (size_t i = 0; i < MOERT_COUNT(others); i++) {
        ASSERT_FAILS(moert_file_open(others[i].path, &file, &bytes), MOERT_ERROR_IO,
                     others[i].message);
        assert_int_equal(file, -1);
        ASSERT_FAILS(moert_file_append(others[i].path, "line\n"), MOERT_ERROR_IO,
                     others[i].message);
    }
    ASSERT_OK(moert_file_open(write_text("text", "seven b"), &file, &bytes));
    assert_int_equal(bytes, 7);
    moert_close_files(&file, 1);
    ASSERT_OK(moert_file_append(in_directory("lines"), "one\n"));
    ASSERT_OK(moert_file_append(in_directory("lines"), "two\n"));
    assert_text(in_directory("lines"), "one\ntwo\n");
}

TEST(test_settle_gives_a_file_its_name_or_removes_it) {
    const char *temporary = in_directory("settled.tmp");
    const char *path = in_directory("settled"), *target = in_directory("a-target");
    ASSERT_OK(moert_make_directories(target));
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

TEST(test_read_refuses_long_texts_and_other_files) {
    char *text;
    const char *path = in_directory("text");
    ASSERT_FAILS(moert_read_text(in_directory("absent"), 10, &text), MOERT_ERROR_IO, "absent");
    ASSERT_FAILS(moert_read_text(test_directory, 10, &text), MOERT_ERROR_IO, test_directory);
    ASSERT_OK(moert_durable_write(path, "0123456789a"));
    ASSERT_FAILS(moert_read_text(path, 10, &text), MOERT_ERROR_FORMAT, "limit 10");
    write_file("text", "a\0b", 3);
    ASSERT_FAILS(moert_read_text(path, 10, &text), MOERT_ERROR_FORMAT, "NUL");
}

TEST(test_directories_are_created_with_their_parents) {
    ASSERT_OK(moert_make_directories(in_directory("a/b//c/")));
    assert_true(exists(in_directory("a/b/c")));
    ASSERT_OK(moert_make_directories(in_directory("a/b/c")));
    ASSERT_OK(moert_make_directories("/"));
    ASSERT_FAILS(moert_make_directories(""), MOERT_ERROR_IO, strerror(ENOENT));
    ASSERT_OK(moert_durable_write(in_directory("a/file"), ""));
    ASSERT_FAILS(moert_make_directories(in_directory("a/file/b")), MOERT_ERROR_IO, "a/file");
}

TEST(test_a_tree_is_removed_but_not_the_targets_of_its_links) {
    const char *kept = in_directory("kept");
    ASSERT_OK(moert_make_directories(in_directory("tree/deep/er")));
    ASSERT_OK(moert_durable_write(kept, "kept"));
    ASSERT_OK(moert_durable_write(in_directory("tree/deep/file"), "gone"));
    assert_int_equal(symlink(kept, in_directory("tree/link")), 0);
    assert_int_equal(symlink(test_directory, in_directory("tree/deep/loop")), 0);
    ASSERT_OK(moert_remove_tree(in_directory("tree")));
    assert_false(exists(in_directory("tree")));
    assert_text(in_directory("kept"), "kept");
    ASSERT_OK(moert_remove_tree(in_directory("tree")));
}

static void make_checkpoint(const char *name, const char *text) {
    ASSERT_OK(moert_make_directories(in_directory(name)));
    write_text(titled("%s/state", name), text);
}

TEST(test_commit_gives_a_directory_its_name_and_replaces_an_older_one) {
    make_checkpoint("step.tmp", "first");
    ASSERT_OK(moert_durable_commit(in_directory("step.tmp"), in_directory("step/")));
    assert_text(in_directory("step/state"), "first");
    make_checkpoint("step.old", "left by a crash");
    make_checkpoint("step.tmp", "second");
    ASSERT_OK(moert_durable_commit(in_directory("step.tmp/"), in_directory("step")));
    assert_text(in_directory("step/state"), "second");
    assert_false(exists(in_directory("step.tmp")));
    assert_false(exists(in_directory("step.old")));
}

TEST(test_a_commit_that_fails_keeps_the_older_directory) {
    make_checkpoint("step", "older");
    ASSERT_FAILS(moert_durable_commit(in_directory("absent"), in_directory("step")), MOERT_ERROR_IO,
                 "absent");
    assert_text(in_directory("step/state"), "older");
    /* a directory cannot be moved into itself; the commit must restore the older directory, which
     * it has renamed */
    ASSERT_FAILS(moert_durable_commit(test_directory, in_directory("step")), MOERT_ERROR_IO,
                 "renamed");
    assert_text(in_directory("step/state"), "older");
    assert_false(exists(in_directory("step.old")));
}

/* ---- JSON when memory runs out ---- */

static size_t calls, failing;

static void *allocate(size_t bytes) {
    return ++calls == failing ? NULL : malloc(bytes);
}

/* ---- writers; each writes one file of the test directory ---- */

static moert_status write_object(void) {
    json_t *root = json_pack("{s[iiiii] ss}", "list", 0, 1, 2, 3, 4, "name", "value");
    const moert_status status = moert_json_write(in_directory("file"), root, JSON_COMPACT);
    json_decref(root);
    return status;
}

static moert_status write_tensors_header(void) {
    const moert_tensor_spec specs[] = {{"a", MOERT_FILE_F32, 3, {1, 2, 3}},
                                       {"b", MOERT_FILE_F32, 2, {4, 5}}};
    static const char *const metadata[] = {"format", "pt", NULL};
    moert_tensor_writer *writer;
    MOERT_TRY(moert_writer_open(in_directory("file"), specs, 2, metadata, true, &writer));
    return moert_writer_close(writer);
}

static moert_status write_manifest(void) {
    moert_manifest *manifest;
    MOERT_TRY(moert_manifest_create(in_directory("held"), &manifest));
    moert_status status = moert_manifest_add(manifest, "config.json");
    if (status == MOERT_OK)
        status = moert_manifest_sum(manifest, 0, moert_manifest_pieces(manifest));
    if (status == MOERT_OK)
        status = moert_manifest_write(manifest);
    moert_manifest_free(manifest);
    return status;
}

/* Writes a table. If the table cannot be formatted, there is no text, so the function writes no
 * file. */
static moert_status write_table(void) {
    static const moert_column columns[] = {{"rank", "rank", MOERT_COLUMN_COUNT},
                                           {"name", "name", MOERT_COLUMN_TEXT}};
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    json_t *rows =
        json_pack("[{si ss} {si ss}]", "rank", 0, "name", "one", "rank", 1, "name", "two");
    const moert_status status = moert_table_print(file, rows, columns, MOERT_COUNT(columns));
    json_decref(rows);
    fclose(file);
    if (bytes > 0)
        write_text("file", text);
    free(text);
    return status;
}

/* Each allocation fails in turn. The write either reports the failure and leaves no file, or
 * writes the usual file. */
TEST(test_files_are_written_whole_or_not_at_all) {
    static const struct {
        moert_status (*write)(void);
        const char *name;
    } rows[] = {{write_object, "file"},
                {write_tensors_header, "file"},
                {write_manifest, "held/manifest.json"},
                {write_table, "file"}};
    ASSERT_OK(moert_make_directories(in_directory("held")));
    write_text("held/config.json", "{}");
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const char *path = titled("%s/%s", test_directory, rows[i].name);
        size_t bytes, again;
        ASSERT_OK(rows[i].write());
        const char *whole = read_file(path, &bytes);
        bool failed = true;
        for (failing = 1; failed; failing++) {
            assert_in_range(failing, 1, 500);
            unlink(path);
            calls = 0;
            moert_json_watch(allocate);
            const moert_status status = rows[i].write();
            failed = calls >= failing;
            assert_int_equal(status, failed ? MOERT_ERROR_MEMORY : MOERT_OK);
            assert_int_equal(access(path, F_OK) != 0, failed);
        }
        assert_memory_equal(read_file(path, &again), whole, bytes);
        assert_int_equal(again, bytes);
        moert_json_watch(malloc);
    }
    assert_non_null(strstr(read_file(in_directory("file"), NULL), "two")); /* of the table */
}

TEST(test_a_text_that_cannot_be_parsed_for_lack_of_memory_is_not_called_malformed) {
    static const char text[] = "{\"a\": [1, 2, 3]}";
    json_t *root;
    calls = 0;
    failing = 3;
    moert_json_watch(allocate);
    ASSERT_FAILS(moert_json_parse("path", "the text", text, strlen(text), &root),
                 MOERT_ERROR_MEMORY, "no memory");
    moert_json_watch(malloc);
}

TESTS(make_test_directory, remove_test_directory)
