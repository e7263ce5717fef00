// run: check=1 all=1san device=0
/* A table of JSON rows is printed whole or not at all, whichever allocation of jansson fails. */
#include "io/json.h"
#include "support/test.h"
#include "tools/common/table.h"

static size_t calls, failing;

static void *allocate(size_t bytes) {
    return ++calls == failing ? NULL : malloc(bytes);
}

static const moert_column columns[] = {
    {"rank", "rank", MOERT_COLUMN_COUNT},
    {"name", "name", MOERT_COLUMN_TEXT},
};

/* Prints two rows into *text, which the running test owns. */
static moert_status print(char **text) {
    char *written = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&written, &bytes);
    json_t *rows = json_array();
    for (int i = 0; i < 2; i++)
        json_array_append_new(rows,
                              json_pack("{si ss}", "rank", i, "name", i == 0 ? "one" : "two"));
    const moert_status status = moert_table_print(file, rows, columns, MOERT_COUNT(columns));
    json_decref(rows);
    fclose(file);
    *text = owned(written, free);
    return status;
}

TEST(test_a_table_is_printed_whole_or_not_at_all) {
    enum { MOST = 100 };
    char *whole, *text;
    moert_json_watch(allocate);
    ASSERT_OK(print(&whole));
    assert_non_null(strstr(whole, "two"));
    for (size_t k = 1; k < MOST; k++) {
        calls = 0;
        failing = k;
        moert_json_watch(allocate);
        const moert_status status = print(&text);
        if (calls < k) {
            ASSERT_OK(status);
            assert_string_equal(text, whole);
            return;
        }
        assert_int_equal(status, MOERT_ERROR_MEMORY);
        assert_string_equal(text, "");
    }
    fail_msg("needs more than %d allocations", MOST);
}

TESTS(NULL, NULL)
