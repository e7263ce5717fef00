/* Aligned tables from JSON arrays of objects: what a script reads and what a person reads are
 * one. */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "base/error.h"

/* X(KIND): how a value is shown. */
#define MOERT_COLUMN_TABLE(X)                                                                      \
    X(TEXT)  /* strings, "-" when all are empty; in the last column wrapped at 100 characters */   \
    X(COUNT) /* an integer, to the right */                                                        \
    X(BYTES) /* an integer, as "1.5 GiB" */                                                        \
    X(REAL)  /* a number, in three significant digits, to the right; "-" for 0 */                  \
    X(FLAG)  /* a boolean, as yes or no */                                                         \
    X(MARK)  /* a boolean, as * or nothing */

typedef enum moert_column_kind {
#define MOERT_COLUMN_ENUM(kind) MOERT_COLUMN_##kind,
    MOERT_COLUMN_TABLE(MOERT_COLUMN_ENUM)
#undef MOERT_COLUMN_ENUM
} moert_column_kind;

typedef struct moert_column {
    const char *key; /* of the value; of several strings "one,other", shown side by side */
    const char *title;
    moert_column_kind kind;
} moert_column;

/* The titles, then a line for each object of `rows`, indented by two. Errors: ERROR_MEMORY. */
moert_status moert_table_print(FILE *file, const json_t *rows, const moert_column *columns,
                               size_t count);
