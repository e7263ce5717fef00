/*
 * What this process is doing that may take long, for signs on the console: reading, compiling,
 * evaluating, saving. Process-wide; any thread may call the functions.
 *
 *     moert_progress_begin("evaluating", 32);
 *     for (...) { ...; moert_progress_add(1); }
 *     moert_progress_end();
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct moert_progress {
    const char *what;  /* such as "compiling kernels", which must stay valid */
    size_t done, of;   /* parts; of = 0: their number is unknown */
    uint64_t began_ns; /* moert_clock_ns() */
} moert_progress;

/* Begins an activity. An activity may contain others. If the last activity that ended has the same
 * name and ended less than two seconds ago, goes on with its time and its parts. */
void moert_progress_begin(const char *what, size_t of);
/* Adds parts that are done to the innermost activity. */
void moert_progress_add(size_t parts);
/* Ends the innermost activity, and calls the listener. */
void moert_progress_end(void);

/* *now = the innermost activity. Returns false if there is none. */
bool moert_progress_get(moert_progress *now);
/* From now on moert_progress_end calls `ended`; NULL: no function. */
void moert_progress_listen(void (*ended)(void));
