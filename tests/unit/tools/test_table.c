// run: check=1 device=0
/* Tables: a cell of every kind, empty cells, and a last column with wrapped text. */
#include "support/files.h"
#include "support/test.h"
#include "tools/common/table.h"

TEST(test_every_kind_of_cell_is_printed) {
    static const moert_column columns[] = {
        {"chosen", "", MOERT_COLUMN_MARK},       {"name,host", "name", MOERT_COLUMN_TEXT},
        {"count", "count", MOERT_COLUMN_COUNT},  {"bytes", "memory", MOERT_COLUMN_BYTES},
        {"rate", "rate", MOERT_COLUMN_REAL},     {"works", "works", MOERT_COLUMN_FLAG},
        {"reason", "why not", MOERT_COLUMN_TEXT}};
    json_t *rows = json_array();
    json_array_append_new(rows,
                          json_pack("{sb ss ss sI sI sf sb ss}", "chosen", 1, "name", "a", "host",
                                    "vm", "count", (json_int_t)12, "bytes", (json_int_t)1610612736,
                                    "rate", 2.5, "works", 1, "reason", ""));
    json_array_append_new(
        rows,
        json_pack("{sb ss sI sI sf sb ss}", "chosen", 0, "name", "other", "count",
                  (json_int_t)1234567, "bytes", (json_int_t)0, "rate", 0.0, "works", 0, "reason",
                  "it takes GPUs of compute capability 8.0 and later, or any other device "
                  "that has tensor cores of its own"));
    FILE *file = fopen(in_directory("table"), "w");
    assert_non_null(file);
    ASSERT_OK(moert_table_print(file, rows, columns, MOERT_COUNT(columns)));
    fclose(file);
    json_decref(rows);
    assert_string_equal(
        read_file(in_directory("table"), NULL),
        "     name     count   memory  rate  works  why not\n"
        "  *  a, vm       12  1.5 GiB  2.50  yes    -\n"
        "     other  1234567      0 B     -  no     it takes GPUs of compute capability 8.0 and "
        "later, or any\n"
        "                                           other device that has tensor cores of its "
        "own\n");
}

TESTS(make_test_directory, remove_test_directory)
