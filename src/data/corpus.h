/*
 * Finds and checks the files of the training data. Reads small files and maps larger ones.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

typedef struct moert_corpus_file {
    char *path;
    const unsigned char *content; /* NULL when empty */
    size_t bytes;
    bool mapped;
} moert_corpus_file;

typedef struct moert_corpus {
    moert_corpus_file *files;
    size_t count, capacity;
} moert_corpus;

/*
 * Adds a file, or the regular files below a directory. Takes the entries of each directory in byte
 * order of their names. Skips symbolic links and special files below it; `path` itself may be a
 * symbolic link. Errors: ERROR_IO (`path` is neither a regular file nor a directory, or a file or
 * directory is missing or unreadable), ERROR_MEMORY.
 */
moert_status moert_corpus_add(moert_corpus *corpus, const char *path);

/* Frees all files and mappings; the corpus is empty afterwards. */
void moert_corpus_clear(moert_corpus *corpus);
