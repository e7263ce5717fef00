/* Helpers for files and directories. */
#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"

moert_status moert_file_mode(const char *path, bool follow, mode_t *mode) {
    struct stat info;
    const int failed = follow ? stat(path, &info) : lstat(path, &info);
    if (failed == 0)
        *mode = info.st_mode;
    else if (errno == ENOENT || errno == ENOTDIR)
        *mode = 0;
    else
        return MOERT_FAIL(ERROR_IO, "%s: cannot be examined: %s", path, strerror(errno));
    return MOERT_OK;
}

static moert_status refuse(const char *path, mode_t mode) {
    return MOERT_FAIL(ERROR_IO, "%s: is a %s; only regular files are used here", path,
                      S_ISDIR(mode)    ? "directory"
                      : S_ISFIFO(mode) ? "pipe"
                      : S_ISSOCK(mode) ? "socket"
                                       : "device");
}

moert_status moert_file_exists(bool *there, const char *format, ...) {
    va_list arguments;
    mode_t mode;
    va_start(arguments, format);
    char *path = moert_text_format_list(format, arguments);
    va_end(arguments);
    *there = false;
    if (path == NULL)
        return MOERT_FAIL(ERROR_MEMORY, "no memory for a path");
    const moert_status status = moert_file_mode(path, true, &mode);
    free(path);
    *there = status == MOERT_OK && mode != 0;
    return status;
}

moert_status moert_file_open(const char *path, int *file, size_t *bytes) {
    struct stat info;
    /* without O_NONBLOCK, open() of a pipe would wait for a writer */
    const int opened = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (opened < 0 || fstat(opened, &info) != 0) {
        const int reason = errno;
        moert_close_files((int[]){opened}, 1);
        return MOERT_FAIL(ERROR_IO, "%s: cannot be opened: %s (is the path right?)", path,
                          strerror(reason));
    }
    if (!S_ISREG(info.st_mode)) {
        close(opened);
        return refuse(path, info.st_mode);
    }
    *file = opened;
    *bytes = (size_t)info.st_size;
    return MOERT_OK;
}

moert_status moert_file_append_to(const char *path, int file, const void *data, size_t bytes) {
    struct stat info;
    const ssize_t written = write(file, data, bytes);
    if (written == (ssize_t)bytes)
        return MOERT_OK;
    const int reason = written < 0 ? errno : ENOSPC;
    const off_t end = lseek(file, 0, SEEK_CUR);
    if (written > 0 && fstat(file, &info) == 0 && info.st_size == end &&
        ftruncate(file, end - written) != 0)
        return MOERT_FAIL(ERROR_IO, "%s: ends in an incomplete record, which cannot be removed: %s",
                          path, strerror(errno));
    return MOERT_FAIL(ERROR_IO, "%s: %zu bytes cannot be appended: %s (is the disk full?)", path,
                      bytes, strerror(reason));
}

static moert_status append(const char *path, int file, const char *text) {
    struct stat info;
    if (file < 0 && errno == ENXIO) /* ENXIO: a pipe without a reader */
        return refuse(path, S_IFIFO);
    if (file < 0 || fstat(file, &info) != 0)
        return MOERT_FAIL(ERROR_IO, "%s: cannot be opened to append: %s (may you write there?)",
                          path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return refuse(path, info.st_mode);
    return moert_file_append_to(path, file, text, strlen(text));
}

moert_status moert_file_append(const char *path, const char *text) {
    /* without O_NONBLOCK, open() of a pipe would wait for a reader */
    const int file =
        open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666);
    moert_status status = append(path, file, text);
    if (file >= 0 && close(file) != 0 && status == MOERT_OK)
        status = MOERT_FAIL(ERROR_IO, "%s: cannot be closed: %s (is the disk full?)", path,
                            strerror(errno));
    return status;
}

bool moert_is_watched(FILE *stream) {
    char path[64];
    if (stream == NULL || !isatty(fileno(stream)))
        return false;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getppid(), fileno(stream));
    int parent = open(path, O_WRONLY | O_NOCTTY | O_CLOEXEC);
    bool watched = parent < 0 || isatty(parent);
    if (parent >= 0)
        close(parent);
    return watched;
}

void moert_close_files(int *files, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (files[i] >= 0)
            close(files[i]);
        files[i] = -1;
    }
}

static moert_status make_directory(const char *path, mode_t mode) {
    mode_t there;
    if (mkdir(path, mode) == 0)
        return MOERT_OK;
    const int reason = errno;
    MOERT_TRY(moert_file_mode(path, true, &there));
    if (S_ISDIR(there))
        return MOERT_OK;
    return MOERT_FAIL(ERROR_IO,
                      "%s: the directory cannot be created: %s (is there room, and may you write "
                      "there?)",
                      path, strerror(reason));
}

static moert_status make_directories(const char *path, mode_t mode) {
    moert_status status = MOERT_OK;
    char *copy = strdup(path);
    if (copy == NULL)
        return MOERT_FAIL(ERROR_MEMORY, "%s: no memory for its path", path);
    for (char *at = copy; *at != '\0' && status == MOERT_OK; at++)
        if (*at == '/' && at != copy) {
            *at = '\0';
            status = make_directory(copy, mode);
            *at = '/';
        }
    if (status == MOERT_OK)
        status = make_directory(copy, mode);
    free(copy);
    return status;
}

moert_status moert_make_directories(const char *path) {
    return make_directories(path, 0777);
}

moert_status moert_make_private_directories(const char *path) {
    return make_directories(path, 0700);
}
