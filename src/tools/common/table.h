/* Aligned tables from JSON arrays of objects: what a script reads and what a person reads are
 * one. */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "base/error.h"

/* How a value is shown. */
typedef enum moert_column_kind {
    MOERT_COLUMN_TEXT,  /* strings, "-" when all are empty; in the last column wrapped at 100
                           characters */
    MOERT_COLUMN_COUNT, /* an integer, to the right */
    MOERT_COLUMN_BYTES, /* an integer, as "1.5 GiB" */
    MOERT_COLUMN_REAL,  /* a number, in three significant digits, to the right; "-" for 0 */
    MOERT_COLUMN_FLAG,  /* a boolean, as yes or no */
    MOERT_COLUMN_MARK   /* a boolean, as * or nothing */
} moert_column_kind;

typedef struct moert_column {
    const char *key; /* of the value; of several strings "one,other", shown side by side */
    const char *title;
    moert_column_kind kind;
} moert_column;

/* The titles, then a line for each object of `rows`, indented by two. Errors: ERROR_MEMORY. */
moert_status moert_table_print(FILE *file, const json_t *rows, const moert_column *columns,
                               size_t count);
