/*
 * Files and directories that are either whole or not there, also after a crash or a full disk.
 *
 * The way of a checkpoint: moert_make_directories(temp), write the files into temp (each is flushed by
 * its writer), moert_durable_commit(temp, final). Nothing here is collective: one process does it.
 * Every message holds the path, errno's text and a hint.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

struct json_t;

/* The whole file as a NUL-terminated string, to be freed; ERROR_FORMAT above `limit_bytes` or with
 * a NUL inside, ERROR_IO, ERROR_MEMORY. */
moert_status moert_read_text(const char *path, size_t limit_bytes, char **text);

/* Makes `path` hold exactly `text`: writes PATH.tmp, flushes it, renames it over path and flushes
 * the folder. On failure an older `path` is untouched. A device or pipe is written to as it is.
 * ERROR_IO. */
moert_status moert_durable_write(const char *path, const char *text);
/* The same of JSON, by jansson's flags. ERROR_IO, ERROR_MEMORY (also for a root that is NULL). */
moert_status moert_durable_write_json(const char *path, const struct json_t *root, size_t flags);

/*
 * Gives the finished directory `temp_dir` its name `final_dir` (on the same file system, its files
 * flushed by their writers) and flushes the parent. An existing final_dir is renamed to
 * FINAL_DIR.old first and removed last; a crash between leaves it whole under that name. On failure
 * it is put back. ERROR_IO, also for a final_dir that is a file.
 */
moert_status moert_durable_commit(const char *temp_dir, const char *final_dir);

/* ERROR_IO for what a file cannot replace without a loss: a link, a device, a pipe. */
moert_status moert_durable_check(const char *path);

/*
 * Ends the writing of one file under a temporary name, flushed by its writer: renames it to `path`
 * when `status` is MOERT_OK, else removes it. Returns `status`, or the failure of the check
 * above or of the renaming (ERROR_IO).
 */
moert_status moert_durable_settle(const char *temporary, const char *path, moert_status status);

/* Whether both are there, and are one file or folder. */
bool moert_same_place(const char *one, const char *other);

/* Removes a file or a directory with all it holds; links are removed, not followed. An absent path
 * is fine. ERROR_IO. */
moert_status moert_remove_tree(const char *path);
/* The same of FOLDER/name. ERROR_IO, ERROR_MEMORY. */
moert_status moert_remove_in(const char *folder, const char *name);

/* Creates a directory and its missing parents; existing ones are fine. ERROR_IO. */
moert_status moert_make_directories(const char *path);
