// run: check=1 all=1san device=0
/* JSON when memory runs out: a text, or a table of JSON rows, is whole or not made, whichever
 * allocation of jansson fails. */
#include <unistd.h>

#include "io/durable.h"
#include "io/json.h"
#include "io/manifest.h"
#include "support/files.h"
#include "tools/common/table.h"

static size_t calls, failing;

static void *allocate(size_t bytes) {
    return ++calls == failing ? NULL : malloc(bytes);
}

/* ---- writers, each of one file of the test directory ---- */

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

/* A table that cannot be printed leaves no text, so no file here. */
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

/* Each allocation fails in turn: the write says so and leaves no file, or the file is as ever. */
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
