/* Prints a JSON array of objects as an aligned table. So the text output of a program shows the
 * same data as --json. */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "base/error.h"

typedef enum moert_column_kind {
    /* strings; "-" when all are empty; wrapped at 100 characters in the last column */
    MOERT_COLUMN_TEXT,
    MOERT_COLUMN_COUNT, /* an integer, right-aligned */
    MOERT_COLUMN_BYTES, /* an integer, as "1.5 GiB" */
    MOERT_COLUMN_REAL,  /* a number in about three digits, right-aligned; "-" for 0 */
    MOERT_COLUMN_FLAG,  /* a boolean, as yes or no */
    MOERT_COLUMN_MARK   /* a boolean, as * or nothing */
} moert_column_kind;

typedef struct moert_column {
    const char *key; /* key of the value; "one,other" joins several strings */
    const char *title;
    moert_column_kind kind;
} moert_column;

/* Prints the titles, then a line for each object of `rows`, indented by two. Errors:
 * ERROR_MEMORY. */
moert_status moert_table_print(FILE *file, const json_t *rows, const moert_column *columns,
                               size_t count);

/* Prints `root` as indented JSON. An error message begins with `what`. Errors: ERROR_MEMORY. */
moert_status moert_table_json(const char *what, const json_t *root);
