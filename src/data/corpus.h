/*
 * Finds the files of the training data and reads ranges of them. Keeps no file open and no content
 * in memory, so that a corpus may have any number of files of any size.
 */
#pragma once

#include <stddef.h>
#include <time.h>

#include "base/error.h"

typedef struct moert_corpus_file {
    char *path;
    size_t bytes;
    struct timespec changed; /* time of the content's last change, as of moert_corpus_add */
} moert_corpus_file;

typedef struct moert_corpus {
    moert_corpus_file *files;
    size_t count, capacity;
} moert_corpus;

/*
 * Adds a file, or the regular files below a directory. Takes the entries of each directory in byte
 * order of their names. Skips symbolic links and special files below a directory; `path` itself may
 * be a symbolic link. Errors: ERROR_IO (`path` is neither a regular file nor a directory, or a file
 * or directory is missing or unreadable), ERROR_MEMORY.
 */
moert_status moert_corpus_add(moert_corpus *corpus, const char *path);

/* Forgets all files; the corpus is empty afterwards. */
void moert_corpus_clear(moert_corpus *corpus);

/* Reads content[bytes] of a file from `offset` on. ERROR_IO, also if the file's size or time of
 * change differs from those found by moert_corpus_add, or if the file has less than offset + bytes
 * bytes. */
moert_status moert_corpus_read(const moert_corpus_file *file, size_t offset, size_t bytes,
                               void *content);
