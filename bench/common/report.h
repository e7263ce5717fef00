/* What every bench has: its rows as JSON, whether all results are right, and what it was
 * measured on. */
#pragma once

#include <jansson.h>

#include "tools/common/program.h"

typedef struct bench_rows {
    json_t *json; /* an array */
    size_t wrong; /* results */
} bench_rows;

/* Adds a row with so many wrong results; it takes the row over, and fails on NULL. */
moert_status bench_rows_add(bench_rows *rows, json_t *row, size_t wrong);

/*
 * Ends a run that came to `status`: rank 0 writes the rows to `path` (NULL: nowhere), then wrong
 * results are an error that says how many of `what` they are. Frees the rows. The ranks agree on
 * the status, so that it is told once, without an abort. Collective.
 */
moert_status bench_rows_end(bench_rows *rows, moert_context *context, const char *path,
                            const char *what, moert_status status);
moert_status bench_rows_write(const bench_rows *rows, const char *path);

/* "name, processor", and the commit that the bench was built from. */
void bench_report_machine(char *text, size_t bytes);
const char *bench_report_commit(void);
