/*
 * PoCL compiles kernels into files of one directory and loads machine code from there unchecked:
 * damaged files crash the process or give wrong results. So each process gives PoCL a private
 * temporary directory, and removes this directory at its exit (directory.c). The cache stores the
 * files that a compilation adds as one checked entry (step.c). A process that needs the files
 * unpacks the entry before PoCL looks for the files. So PoCL only finds files that this process has
 * just written.
 *
 * If the user sets POCL_CACHE_DIR, PoCL uses that directory, and moert caches no files of that
 * directory.
 */
#pragma once

#include <fts.h>
#include <stdbool.h>

#include "base/error.h"
#include "device/cache.h"

/* Creates the private directory, unless it exists, and sets POCL_CACHE_DIR. Must precede the first
 * OpenCL call. If no directory is usable, sets a path that cannot exist: PoCL then reports no
 * device, and does not abort the process. */
void moert_pocl_set_directory(void);
/* Hides the directory from child processes, after PoCL has read POCL_CACHE_DIR. */
void moert_pocl_unset_directory(void);
/* The private directory, or NULL. */
const char *moert_pocl_directory(void);
/* Why PoCL has no directory, for the end of a message; or "". */
const char *moert_pocl_problem(void);
/* Creates the private directory again if it was deleted, and checks that PoCL has room there. If
 * PoCL `compiles`, also writes to the directory as a test, and checks that the compiler has memory.
 * `what` names the program or kernel in messages. Errors: ERROR_IO, ERROR_MEMORY. */
moert_status moert_pocl_prepare(const char *what, bool compiles);

/* A build of a program or a first launch of a kernel. */
typedef struct moert_pocl_step {
    moert_cache_entry entry;
    bool compiles; /* the cache has no entry */
} moert_pocl_step;
/* Unpacks the cache entry of `key` (NULL: no entry). If the entry is missing, locks it until
 * moert_pocl_end. `what` names the program or kernel in messages. Errors: those of
 * moert_pocl_prepare. */
moert_status moert_pocl_begin(const char *key, const char *what, moert_pocl_step *step);
/* Ends a step. If PoCL has compiled, and `done` is true, stores the new files in the cache. */
void moert_pocl_end(moert_pocl_step *step, bool done);

/* Walks a directory and everything below it, without following links; NULL on failure. */
static inline FTS *moert_pocl_walk(const char *path) {
    return fts_open((char *[]){(char *)path, NULL}, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
}
