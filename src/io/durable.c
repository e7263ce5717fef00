/* Writes files and directories so that they are complete or absent. */
#include "io/durable.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/memory.h"
#include "base/text.h"

/* Text for messages: the two usual reasons why a write fails. */
static const char room_hint[] = "is there room, and may you write there?";

/* *text = the content of an open file of `bytes` bytes. */
static moert_status read_content(const char *path, FILE *file, size_t bytes, char **text) {
    moert_status status = MOERT_OK;
    char *content;
    MOERT_TRY(moert_alloc(&content, bytes + 1, 1));
    const size_t read = fread(content, 1, bytes, file);
    if (ferror(file))
        status = MOERT_FAIL(ERROR_IO, "%s: cannot be read: %s (is the disk intact?)", path,
                            strerror(errno));
    else if (memchr(content, '\0', read) != NULL)
        status =
            MOERT_FAIL(ERROR_FORMAT, "%s: is not text: byte %zu is NUL", path, strlen(content));
    if (status == MOERT_OK)
        *text = content;
    else
        free(content);
    return status;
}

moert_status moert_read_text(const char *path, size_t limit_bytes, char **text) {
    size_t bytes;
    int handle;
    MOERT_TRY(moert_file_open(path, &handle, &bytes));
    FILE *file = fdopen(handle, "r");
    if (file == NULL) {
        const int reason = errno;
        close(handle);
        return MOERT_FAIL(ERROR_IO, "%s: cannot be read: %s", path, strerror(reason));
    }
    const moert_status status =
        bytes <= limit_bytes ? read_content(path, file, bytes, text)
                             : MOERT_FAIL(ERROR_FORMAT, "%s: has %zu bytes, above the limit %zu",
                                          path, bytes, limit_bytes);
    fclose(file);
    return status;
}

static moert_status flush_directory(const char *path) {
    moert_status status = MOERT_OK;
    int directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0)
        return MOERT_FAIL(ERROR_IO, "%s: cannot be opened as a directory: %s (does it exist?)",
                          path, strerror(errno));
    if (fsync(directory) != 0 && errno != EINVAL) /* EINVAL: a file system without fsync */
        status = MOERT_FAIL(ERROR_IO, "%s: cannot be flushed to disk: %s (%s)", path,
                            strerror(errno), room_hint);
    close(directory);
    return status;
}

/* *copy = the path without trailing slashes, so that callers can append suffixes and find the
 * parent. */
static moert_status trimmed(const char *path, char **copy) {
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    *copy = strndup(path, length);
    return *copy != NULL ? MOERT_OK : MOERT_FAIL(ERROR_MEMORY, "%s: no memory for its path", path);
}

/* Flushes the directory of `path`, which has no trailing slashes. */
static moert_status flush_parent(const char *path) {
    const char *slash = strrchr(path, '/');
    if (slash == NULL)
        return flush_directory(".");
    char *parent = strndup(path, slash == path ? 1 : (size_t)(slash - path));
    if (parent == NULL)
        return MOERT_FAIL(ERROR_MEMORY, "%s: no memory for its path", path);
    moert_status status = flush_directory(parent);
    free(parent);
    return status;
}

static moert_status rename_path(const char *from, const char *to) {
    if (rename(from, to) != 0)
        return MOERT_FAIL(ERROR_IO, "%s: cannot be renamed to %s: %s (%s)", from, to,
                          strerror(errno), room_hint);
    return MOERT_OK;
}

moert_status moert_durable_check(const char *path) {
    mode_t mode; /* if `path` is a directory, rename reports the error */
    MOERT_TRY(moert_file_mode(path, false, &mode));
    if (mode == 0 || S_ISREG(mode) || S_ISDIR(mode))
        return MOERT_OK;
    return MOERT_FAIL(ERROR_IO, "%s: is not a regular file; only regular files are replaced", path);
}

moert_status moert_durable_settle(const char *temporary, const char *path, moert_status status) {
    if (status == MOERT_OK)
        status = moert_durable_check(path);
    if (status == MOERT_OK)
        status = rename_path(temporary, path);
    if (status == MOERT_OK)
        return flush_parent(path);
    unlink(temporary);
    return status;
}

moert_status moert_durable_finish(FILE *file, const char *temporary, const char *path) {
    bool written = !ferror(file) && fflush(file) == 0 && fsync(fileno(file)) == 0;
    int reason = errno;
    if (fclose(file) != 0 && written) {
        written = false;
        reason = errno;
    }
    const moert_status status = written ? MOERT_OK
                                        : MOERT_FAIL(ERROR_IO, "%s: cannot be written: %s (%s)",
                                                     temporary, strerror(reason), room_hint);
    return moert_durable_settle(temporary, path, status);
}

static moert_status write_through(const char *path, const char *text) {
    FILE *file = fopen(path, "we");
    const bool written = file != NULL && fputs(text, file) >= 0 && fflush(file) == 0;
    const int reason = errno;
    if (file != NULL)
        fclose(file);
    return written ? MOERT_OK
                   : MOERT_FAIL(ERROR_IO, "%s: cannot be written: %s", path, strerror(reason));
}

/* Creates PATH.tmp; the caller frees *temporary. */
static moert_status create_temporary(const char *path, char **temporary, FILE **file) {
    MOERT_TRY(moert_text_path(temporary, "%s.tmp", path));
    *file = fopen(*temporary, "we");
    if (*file != NULL)
        return MOERT_OK;
    const moert_status status = MOERT_FAIL(ERROR_IO, "%s: cannot be created: %s (%s)", *temporary,
                                           strerror(errno), room_hint);
    free(*temporary);
    return status;
}

moert_status moert_durable_write(const char *path, const char *text) {
    char *temporary;
    FILE *file;
    mode_t mode;
    MOERT_TRY(moert_file_mode(path, true, &mode));
    if (mode != 0 && !S_ISREG(mode) && !S_ISDIR(mode))
        return write_through(path, text);
    MOERT_TRY(create_temporary(path, &temporary, &file));
    fputs(text, file);
    const moert_status status = moert_durable_finish(file, temporary, path);
    free(temporary);
    return status;
}

moert_status moert_durable_write_in(const char *directory, const char *name, const char *text) {
    char *path;
    MOERT_TRY(moert_text_path(&path, "%s/%s", directory, name));
    const moert_status status = moert_durable_write(path, text);
    free(path);
    return status;
}

/* Copies the unread rest of the open file `file` to `to`. */
static moert_status copy_content(const char *from, int file, FILE *to) {
    char piece[1 << 16];
    ssize_t bytes;
    while ((bytes = read(file, piece, sizeof piece)) > 0)
        fwrite(piece, 1, (size_t)bytes, to);
    return bytes == 0 ? MOERT_OK
                      : MOERT_FAIL(ERROR_IO, "%s: cannot be read: %s (is the disk intact?)", from,
                                   strerror(errno));
}

moert_status moert_durable_copy(const char *from, const char *path) {
    char *temporary = NULL;
    FILE *file = NULL;
    size_t bytes;
    int source;
    MOERT_TRY(moert_file_open(from, &source, &bytes));
    moert_status status;
    MOERT_TRY_OR(close_source, create_temporary(path, &temporary, &file));
    status = copy_content(from, source, file);
    if (status == MOERT_OK) {
        status = moert_durable_finish(file, temporary, path);
    } else {
        fclose(file);
        unlink(temporary);
    }
    free(temporary);
close_source:
    close(source);
    return status;
}

bool moert_same_file(const char *one, const char *other) {
    struct stat a, b;
    return stat(one, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

/* The renames of a commit: final -> old if final exists, then temp -> final. If the second rename
 * fails, undoes the first rename. */
static moert_status swap_directories(const char *temp, const char *final, const char *old) {
    mode_t replaced;
    MOERT_TRY(moert_file_mode(final, false, &replaced));
    if (replaced != 0 && !S_ISDIR(replaced) && !S_ISLNK(replaced))
        return MOERT_FAIL(ERROR_IO, "%s: is not a directory; only directories are replaced", final);
    if (replaced != 0) {
        MOERT_TRY(moert_remove_tree(old));
        MOERT_TRY(rename_path(final, old));
    }
    moert_status status = rename_path(temp, final);
    if (status != MOERT_OK && replaced != 0 && rename(old, final) != 0)
        return MOERT_FAIL(ERROR_IO,
                          "%s: is missing now, since neither %s nor the older directory could be "
                          "renamed to it: %s (the older directory is complete in %s)",
                          final, temp, strerror(errno), old);
    return status;
}

moert_status moert_durable_commit(const char *temp_dir, const char *final_dir) {
    moert_status status = MOERT_OK;
    char *temp = NULL, *final = NULL, *old = NULL;
    MOERT_TRY_OR(free_paths, trimmed(temp_dir, &temp));
    MOERT_TRY_OR(free_paths, trimmed(final_dir, &final));
    old = moert_text_format("%s.old", final);
    if (old == NULL) {
        status = MOERT_FAIL(ERROR_MEMORY, "%s: no memory for its path", final);
        goto free_paths;
    }
    MOERT_TRY_OR(free_paths, flush_directory(temp));
    MOERT_TRY_OR(free_paths, swap_directories(temp, final, old));
    MOERT_TRY_OR(free_paths, flush_parent(final));
    MOERT_TRY_OR(free_paths, moert_remove_tree(old));
free_paths:
    MOERT_FREE(temp, final, old);
    return status;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *position) {
    (void)info, (void)kind, (void)position;
    if (remove(path) == 0 || errno == ENOENT)
        return 0;
    MOERT_FAIL(ERROR_IO, "%s: cannot be removed: %s (may you write there?)", path, strerror(errno));
    return 1;
}

moert_status moert_remove_tree(const char *path) {
    mode_t mode;
    enum { OPEN_DIRECTORIES = 16 };
    MOERT_TRY(moert_file_mode(path, false, &mode));
    if (mode == 0)
        return MOERT_OK;
    int result = nftw(path, remove_entry, OPEN_DIRECTORIES, FTW_DEPTH | FTW_PHYS);
    if (result < 0)
        return MOERT_FAIL(ERROR_IO, "%s: cannot be walked to be removed: %s (may you read it?)",
                          path, strerror(errno));
    return result == 0 ? MOERT_OK : MOERT_ERROR_IO;
}

moert_status moert_remove_in(const char *directory, const char *name) {
    char *path;
    MOERT_TRY(moert_text_path(&path, "%s/%s", directory, name));
    const moert_status status = moert_remove_tree(path);
    free(path);
    return status;
}
