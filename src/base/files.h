/* Helpers for files and directories. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

/* *mode = what is at `path`, as st_mode of stat(2); 0 if nothing is there. `follow`: of a link, its
 * target. Errors: ERROR_IO, if that cannot be found out. */
moert_status moert_file_mode(const char *path, bool follow, mode_t *mode);

/* *there = whether something is at the path, or at the target of a link there. Errors: ERROR_IO,
 * ERROR_MEMORY. */
moert_status moert_file_exists(bool *there, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/*
 * Opens an existing regular file to read; *bytes = its size. Refuses everything else at once: a
 * pipe would wait for a writer, and a device may have no end. The caller closes *file. ERROR_IO.
 */
moert_status moert_file_open(const char *path, int *file, size_t *bytes);

/* Appends a text to a file, which is created if it is absent. It makes one system call, so that
 * lines of several processes do not mix. Takes back a text that does not fit. ERROR_IO, also if it
 * is no regular file. */
moert_status moert_file_append(const char *path, const char *text);

/* Appends bytes to an open file in one system call, and takes them back if they do not all fit.
 * ERROR_IO. */
moert_status moert_file_append_to(const char *path, int file, const void *data, size_t bytes);

/* Closes each file that is not -1, and sets it to -1. */
void moert_close_files(int *files, size_t count);

/* Creates a directory and its missing parents; they may exist. Errors: ERROR_IO, ERROR_MEMORY. */
moert_status moert_make_directories(const char *path);
/* The same; only this user may enter the new directories. */
moert_status moert_make_private_directories(const char *path);
