/* Common code of the benches: rows as lines and as JSON, the count of wrong results, machine and
 * commit. */
#pragma once

#include <jansson.h>

#include "tools/common/program.h"

/*
 * Columns of a row, separated by commas: "KEY FORMAT [TITLE]"; the default title is KEY. The blanks
 * before a column are printed. A column with the KEY - is not in the JSON. A column with the FORMAT
 * *TYPE is only in the JSON. FORMAT is [-]WIDTH[.DIGITS]TYPE[?]. Each TYPE takes these arguments:
 *
 *   s  const char *; "" at the end of a line ends the line before the blanks
 *   c  const char *words, unsigned index: a word of "word|word|..."
 *   z  size_t
 *   f  double; e likewise, with an exponent
 *   b  int, a bool: yes or no
 *   w  int, a bool: wrong or right, without a title
 *   o  json_t *, only in the JSON
 *
 * With ?, a number that is not above 0 or a text that is NULL means unknown, which the line shows
 * as - and the JSON as null. bench_rows adds up the values of the column with the KEY wrong.
 */
typedef struct bench_rows {
    const moert_context *context;
    const char *columns;
    json_t *json; /* an array */
    size_t wrong; /* number of wrong results */
    bool quiet;   /* rank 0 prints no lines for rows */
} bench_rows;

/* Begins a table: rank 0 prints "# moert COMMIT, " and the formatted text, unless `format` is NULL,
 * and then the titles. */
bench_rows bench_rows_begin(const moert_context *context, const char *columns, const char *format,
                            ...) __attribute__((format(printf, 3, 4)));

/* Prints a row on rank 0, and adds it to the JSON. The variable arguments are the values of the
 * columns. */
moert_status bench_rows_add(bench_rows *rows, ...);

/*
 * Ends a run with the status so far. Rank 0 writes the rows to `path` (unless NULL). If there are
 * wrong results, the status becomes an error with the message "N WHAT are wrong". Frees the rows.
 * The ranks agree on the status, so that only one message is printed and no rank aborts.
 * Collective.
 */
moert_status bench_rows_end(bench_rows *rows, const char *path, const char *what,
                            moert_status status);

/* Return "name of the host, processor", and the commit from which the bench was built. */
void bench_report_machine(char *text, size_t bytes);
const char *bench_report_commit(void);
