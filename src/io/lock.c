/* Locks directories for one job at a time. */
#include "io/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/durable.h"

struct moert_lock {
    char *directory, *path;
    int handle; /* file descriptor of `path`, or -1 */
    bool held;  /* this job holds the lock */
    size_t old; /* bytes of the part of `directory` that existed before the lock was taken */
};

static moert_status refuse(const moert_lock *lock) {
    char holder[128] = "";
    const ssize_t bytes = pread(lock->handle, holder, sizeof holder - 1, 0);
    char *space = bytes > 0 ? strchr(holder, ' ') : NULL;
    if (space == NULL)
        return MOERT_FAIL(ERROR_USAGE, "%s: another job writes there; give another directory",
                          lock->directory);
    *space = '\0';
    space[1 + strcspn(space + 1, "\n")] = '\0';
    return MOERT_FAIL(ERROR_USAGE,
                      "%s: process %s on %s writes there; wait for its end, or give another "
                      "directory",
                      lock->directory, space + 1, holder);
}

/* Whether the locked file still has its name: the last holder may have removed the file. */
static bool is_current(const moert_lock *lock) {
    struct stat named, held;
    return stat(lock->path, &named) == 0 && fstat(lock->handle, &held) == 0 &&
           named.st_dev == held.st_dev && named.st_ino == held.st_ino;
}

static moert_status take(moert_lock *lock) {
    for (;;) {
        lock->handle =
            open(lock->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
        if (lock->handle < 0)
            return MOERT_FAIL(ERROR_IO, "%s: cannot be opened: %s (may you write there?)",
                              lock->path, strerror(errno));
        if (flock(lock->handle, LOCK_EX | LOCK_NB) != 0) {
            if (errno == EWOULDBLOCK)
                return refuse(lock);
            MOERT_WARN("%s: cannot be locked: %s; nothing keeps another job out", lock->directory,
                       strerror(errno));
            lock->held = true;
            return MOERT_OK;
        }
        lock->held = is_current(lock);
        if (lock->held)
            break;
        moert_close_files(&lock->handle, 1);
    }
    char host[64] = "", holder[128];
    gethostname(host, sizeof host - 1);
    snprintf(holder, sizeof holder, "%s %ld\n", host, (long)getpid());
    if (ftruncate(lock->handle, 0) != 0 ||
        pwrite(lock->handle, holder, strlen(holder), 0) != (ssize_t)strlen(holder))
        return MOERT_FAIL(ERROR_IO, "%s: cannot be written: %s (is there room?)", lock->path,
                          strerror(errno));
    return MOERT_OK;
}

/* Cuts a path at its last '/', or to "" if it has none. Returns the bytes that remain. */
static size_t cut_last(char *path) {
    char *slash = strrchr(path, '/');
    *(slash != NULL ? slash : path) = '\0';
    return strlen(path);
}

/* *bytes = the length of the longest leading part of `path` that exists. */
static moert_status find_existing(const char *path, size_t *bytes) {
    char *part = moert_text_format("%s", path);
    if (part == NULL)
        return MOERT_FAIL(ERROR_MEMORY, "no room for the path %s", path);
    *bytes = strlen(part);
    while (*bytes > 0 && access(part, F_OK) != 0)
        *bytes = cut_last(part);
    free(part);
    return MOERT_OK;
}

/* Removes the directories that moert_lock_take has created, if they are empty. */
static void remove_directories(const moert_lock *lock) {
    size_t bytes = lock->directory != NULL ? strlen(lock->directory) : 0;
    while (bytes > lock->old) {
        rmdir(lock->directory);
        bytes = cut_last(lock->directory);
    }
}

moert_status moert_lock_take(const char *directory, moert_lock **out) {
    moert_lock *lock;
    MOERT_TRY(MOERT_NEW(&lock));
    lock->handle = -1;
    lock->old = strlen(directory);
    moert_status status;
    MOERT_TRY_OR(undo, moert_text_path(&lock->directory, "%s", directory));
    MOERT_TRY_OR(undo, moert_text_path(&lock->path, "%s/.lock", directory));
    MOERT_TRY_OR(undo, find_existing(directory, &lock->old));
    MOERT_TRY_OR(undo, moert_make_directories(directory));
    MOERT_TRY_OR(undo, take(lock));
    *out = lock;
    return MOERT_OK;
undo:
    moert_lock_release(lock);
    return status;
}

void moert_lock_release(moert_lock *lock) {
    if (lock == NULL)
        return;
    if (lock->held)
        unlink(lock->path);
    moert_close_files(&lock->handle, 1);
    remove_directories(lock);
    MOERT_FREE(lock->path, lock->directory, lock);
}
