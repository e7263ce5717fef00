/* Helpers for files and directories. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

#include "base/error.h"

/* *mode = st_mode of the file at `path`, as stat(2) gives it; 0 if there is no file. `follow`:
 * follows a symbolic link. Errors: ERROR_IO (stat fails for another reason than a missing file). */
moert_status moert_file_mode(const char *path, bool follow, mode_t *mode);

/* *there = whether a file of any kind exists at the path; a symbolic link counts if its target
 * exists. Errors: ERROR_IO, ERROR_MEMORY. */
moert_status moert_file_exists(bool *there, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/*
 * Opens an existing regular file to read; *bytes = its size. Fails at once for other kinds of
 * files: a pipe would wait for a writer, and a device may have no end. The caller closes *file.
 * ERROR_IO.
 */
moert_status moert_file_open(const char *path, int *file, size_t *bytes);

/* Appends a text to a file, which is created if it is absent. One system call writes the text, so
 * that lines of several processes do not mix. If only a part of the text could be written, removes
 * that part. ERROR_IO, also if the path is not a regular file. */
moert_status moert_file_append(const char *path, const char *text);

/* Appends bytes to an open file in one system call. If only a part could be written, removes that
 * part. ERROR_IO. */
moert_status moert_file_append_to(const char *path, int file, const void *data, size_t bytes);

/* Whether the stream is a terminal that a person sees; false for NULL. mpirun gives its ranks
 * pseudo-terminals, so the parent's stream must be a terminal as well. */
bool moert_is_watched(FILE *stream);

/* Closes each file that is not -1, and sets it to -1. */
void moert_close_files(int *files, size_t count);

/* Creates a directory and its missing parents. An existing directory is no error. Errors: ERROR_IO,
 * ERROR_MEMORY. */
moert_status moert_make_directories(const char *path);
/* Like moert_make_directories, but only this user may enter the new directories. */
moert_status moert_make_private_directories(const char *path);
