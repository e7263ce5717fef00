/* Common code of the benches: rows as JSON, the count of wrong results, machine and commit. */
#pragma once

#include <jansson.h>

#include "tools/common/program.h"

typedef struct bench_rows {
    json_t *json; /* an array */
    size_t wrong; /* number of wrong results */
} bench_rows;

/* Adds a row with `wrong` wrong results. Owns the row afterwards; fails if it is NULL. */
moert_status bench_rows_add(bench_rows *rows, json_t *row, size_t wrong);

/*
 * Ends a run with the status so far. Rank 0 writes the rows to `path` (unless NULL). Wrong results
 * are then an error: "N WHAT are wrong". Frees the rows. The ranks agree on the status, so that it
 * is reported once, without an abort. Collective.
 */
moert_status bench_rows_end(bench_rows *rows, moert_context *context, const char *path,
                            const char *what, moert_status status);
moert_status bench_rows_write(const bench_rows *rows, const char *path);

/* "name, processor", and the commit that the bench was built from. */
void bench_report_machine(char *text, size_t bytes);
const char *bench_report_commit(void);
