/* Prints aligned tables. */
#include "tools/common/table.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "io/json.h"

enum { LINE_WIDTH = 100, CELL_BYTES = 2048, SMALLEST_WRAP = 24 };

/* Prints a value with about three digits, without an exponent. */
static void put_real(double value, char *cell) {
    const double size = fabs(value);
    if (value == 0.0)
        snprintf(cell, CELL_BYTES, "-");
    else
        snprintf(cell, CELL_BYTES, "%.*f",
                 size < 1.0     ? 3
                 : size < 10.0  ? 2
                 : size < 100.0 ? 1
                                : 0,
                 value);
}

/* Joins the non-empty strings of the comma-separated `keys` by ", "; "-" if all are empty. */
static void put_text(const json_t *row, const char *keys, char *cell) {
    size_t used = 0;
    char key[64];
    cell[0] = '\0';
    for (const char *at = keys; *at != '\0'; at += *at == ',') {
        const size_t length = strcspn(at, ",");
        snprintf(key, sizeof key, "%.*s", (int)length, at);
        const char *text = json_string_value(json_object_get(row, key));
        if (text != NULL && text[0] != '\0' && used < CELL_BYTES)
            used += (size_t)snprintf(cell + used, CELL_BYTES - used, "%s%s", used > 0 ? ", " : "",
                                     text);
        at += length;
    }
    if (used == 0)
        snprintf(cell, CELL_BYTES, "-");
}

/* Prints the text of one cell into `cell`; the column's title if `row` is NULL. */
static void put_cell(const moert_column *column, const json_t *row, char *cell) {
    const json_t *value = json_object_get(row, column->key);
    if (row == NULL)
        snprintf(cell, CELL_BYTES, "%s", column->title);
    else if (column->kind == MOERT_COLUMN_TEXT)
        put_text(row, column->key, cell);
    else if (column->kind == MOERT_COLUMN_COUNT)
        snprintf(cell, CELL_BYTES, "%lld", (long long)json_integer_value(value));
    else if (column->kind == MOERT_COLUMN_BYTES)
        moert_text_put_bytes((double)json_integer_value(value), cell);
    else if (column->kind == MOERT_COLUMN_REAL)
        put_real(json_number_value(value), cell);
    else if (column->kind == MOERT_COLUMN_FLAG)
        snprintf(cell, CELL_BYTES, "%s", json_is_true(value) ? "yes" : "no");
    else
        snprintf(cell, CELL_BYTES, "%s", json_is_true(value) ? "*" : "");
}

/* Prints `text` from column `at` on, wrapped at LINE_WIDTH. */
static void put_wrapped(FILE *file, const char *text, size_t at) {
    const size_t room = at + SMALLEST_WRAP < LINE_WIDTH ? LINE_WIDTH - at : SMALLEST_WRAP;
    while (strlen(text) > room) {
        size_t length = room;
        while (length > 0 && text[length] != ' ')
            length--;
        if (length == 0)
            length = strcspn(text, " ");
        fprintf(file, "%.*s\n%*s", (int)length, text, (int)at, "");
        text += length;
        text += strspn(text, " ");
    }
    fprintf(file, "%s\n", text);
}

static void put_row(FILE *file, const json_t *row, const moert_column *columns, size_t count,
                    const int *widths, char *cell) {
    size_t at = 2;
    fputs("  ", file);
    for (size_t i = 0; i < count; i++) {
        const moert_column_kind kind = columns[i].kind;
        put_cell(&columns[i], row, cell);
        if (i + 1 == count && kind == MOERT_COLUMN_TEXT) {
            put_wrapped(file, cell, at);
            return;
        }
        const bool right =
            kind == MOERT_COLUMN_COUNT || kind == MOERT_COLUMN_BYTES || kind == MOERT_COLUMN_REAL;
        const char *gap = i + 1 < count ? "  " : "\n";
        fprintf(file, right ? "%*s%s" : "%-*s%s", widths[i], cell, gap);
        at += (size_t)widths[i] + 2;
    }
}

moert_status moert_table_print(FILE *file, const json_t *rows, const moert_column *columns,
                               size_t count) {
    int *widths = NULL;
    char *cell = NULL;
    moert_status status;
    MOERT_TRY(moert_json_memory("the table"));
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&widths, count));
    MOERT_TRY_OR(done, moert_alloc(&cell, CELL_BYTES, 1));
    for (size_t r = 0; r <= json_array_size(rows); r++)
        for (size_t i = 0; i < count; i++) {
            put_cell(&columns[i], r > 0 ? json_array_get(rows, r - 1) : NULL, cell);
            const int width = (int)strlen(cell);
            widths[i] = width > widths[i] ? width : widths[i];
        }
    for (size_t r = 0; r <= json_array_size(rows); r++)
        put_row(file, r > 0 ? json_array_get(rows, r - 1) : NULL, columns, count, widths, cell);
done:
    MOERT_FREE(cell, widths);
    return status;
}

moert_status moert_table_json(const char *what, const json_t *root) {
    char *text;
    MOERT_TRY(moert_json_text(what, root, JSON_INDENT(2), &text));
    puts(text);
    free(text);
    return MOERT_OK;
}
