/* Common code of the benches: rows as lines and as JSON, the count of wrong results, machine and
 * commit. */
#pragma once

#include <jansson.h>

#include "tools/common/program.h"

/*
 * Columns of a row, separated by commas: "KEY FORMAT [TITLE]", the title KEY unless given. The
 * blanks before a column are printed. KEY - : not in the JSON; FORMAT *TYPE: not in the line.
 * FORMAT: [-]WIDTH[.DIGITS]TYPE[?]. Each TYPE takes these arguments:
 *
 *   s  const char *; "" at the end of a line ends the line before the blanks
 *   c  const char *words, unsigned index: a word of "word|word|..."
 *   z  size_t
 *   f  double; e likewise, with an exponent
 *   b  int, a bool: yes or no
 *   w  int, a bool: wrong or right, without a title
 *   o  json_t *, only in the JSON
 *
 * With ? a number that is not above 0 or a text that is NULL is unknown: - in the line, null in the
 * JSON. The values of KEY wrong are added up.
 */
typedef struct bench_rows {
    const moert_context *context;
    const char *columns;
    json_t *json; /* an array */
    size_t wrong; /* number of wrong results */
    bool quiet;   /* rows print no lines */
} bench_rows;

/* Begins rows: rank 0 prints "# moert COMMIT, " and the formatted text unless it is NULL, then the
 * titles. */
bench_rows bench_rows_begin(const moert_context *context, const char *columns, const char *format,
                            ...) __attribute__((format(printf, 3, 4)));

/* Prints a row on rank 0, and adds it to the JSON. The arguments are those of the columns. */
moert_status bench_rows_add(bench_rows *rows, ...);

/*
 * Ends a run with the status so far. Rank 0 writes the rows to `path` (unless NULL). Wrong results
 * are then an error: "N WHAT are wrong". Frees the rows. The ranks agree on the status, so that it
 * is reported once, without an abort. Collective.
 */
moert_status bench_rows_end(bench_rows *rows, const char *path, const char *what,
                            moert_status status);

/* "name, processor", and the commit that the bench was built from. */
void bench_report_machine(char *text, size_t bytes);
const char *bench_report_commit(void);
