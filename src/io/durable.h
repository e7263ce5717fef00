/*
 * Writes files and directories that are complete or absent, even after a crash or on a full disk.
 *
 * A checkpoint is written in three steps: moert_make_directories(temp), files in temp (each writer
 * flushes its file), moert_durable_commit(temp, final). No function is collective; one process
 * calls them. Every error message has the path, errno's text and a hint.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/error.h"
#include "base/files.h"

/* *text = the file's content as a NUL-terminated string, which the caller frees. Errors:
 * ERROR_FORMAT (longer than `limit_bytes`, or a NUL inside), ERROR_IO (also if it is not a regular
 * file), ERROR_MEMORY. */
moert_status moert_read_text(const char *path, size_t limit_bytes, char **text);

/* Replaces the content of `path` by `text`: writes PATH.tmp, flushes it, renames it to path and
 * flushes the directory. On failure an older `path` is unchanged. If `path` is a device or a pipe,
 * writes directly to it. ERROR_IO. */
moert_status moert_durable_write(const char *path, const char *text);
/* Like moert_durable_write, for DIRECTORY/name. ERROR_IO, ERROR_MEMORY. */
moert_status moert_durable_write_in(const char *directory, const char *name, const char *text);

/* Copies a file to `path` with the same steps as moert_durable_write. ERROR_IO, ERROR_MEMORY. */
moert_status moert_durable_copy(const char *from, const char *path);

/*
 * Renames the finished directory `temp_dir` to `final_dir` and flushes the parent. Both directories
 * must be on one file system, and the writers must have flushed the files. An existing final_dir is
 * first renamed to FINAL_DIR.old and removed last; after a crash the old directory is complete
 * under that name. On failure the old directory gets its original name back. ERROR_IO, also if
 * final_dir is a file.
 */
moert_status moert_durable_commit(const char *temp_dir, const char *final_dir);

/* ERROR_IO if `path` is a link, a device or a pipe, which a rename would destroy. */
moert_status moert_durable_check(const char *path);

/*
 * If `status` is MOERT_OK, renames a flushed file from its temporary name to `path`; otherwise
 * removes the file. Returns `status`, or ERROR_IO if moert_durable_check or the rename fails.
 */
moert_status moert_durable_settle(const char *temporary, const char *path, moert_status status);

/* Flushes and closes a file with a temporary name, then calls moert_durable_settle. An earlier
 * failed write is ERROR_IO too; errno must still hold its reason. */
moert_status moert_durable_finish(FILE *file, const char *temporary, const char *path);

/* Whether both paths exist and are the same file or directory. */
bool moert_same_file(const char *one, const char *other);

/* Removes a file, or a directory and its contents; removes links without following them. The path
 * may be absent. ERROR_IO. */
moert_status moert_remove_tree(const char *path);
/* Like moert_remove_tree, for DIRECTORY/name. ERROR_IO, ERROR_MEMORY. */
moert_status moert_remove_in(const char *directory, const char *name);
