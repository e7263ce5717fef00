/*
 * The on-disk cache of compiled programs. The first process that locks an entry builds the entry.
 * The other processes of the host wait for the lock and then load the entry. If the cache cannot be
 * used, programs are compiled again, with the same results.
 *
 * An entry is a checksum (XXH3, 128 bits) followed by the machine code: drivers crash on code that
 * a full disk or an interrupted copy has truncated.
 *
 * With PoCL the machine code is a sequence of files (pocl/step.c).
 */
#include "device/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/files.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/phase.h"
#include "base/text.h"

/* Warns once that kernels are compiled without the cache. */
static void warn_once(const char *what, const char *path, const char *why) {
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&warned))
        MOERT_WARN("cannot use the %s %s: %s; moert compiles the kernels instead of loading them",
                   what, path, why);
}

/* Whether only this user can write to a directory, since drivers load machine code from there. */
static bool is_private(const char *directory) {
    struct stat info;
    if (stat(directory, &info) != 0) {
        warn_once("kernel cache", directory, strerror(errno));
        return false;
    }
    if (!S_ISDIR(info.st_mode))
        return false;
    if (info.st_uid != geteuid()) {
        warn_once("kernel cache", directory, "it belongs to another user");
        return false;
    }
    if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        warn_once("kernel cache", directory, "other users may write there (chmod go-w permits it)");
        return false;
    }
    return true;
}

uint64_t moert_cache_patience_ns = 60000000000;

static bool is_off(void) {
    return strcmp(moert_config_get()->cache_dir, "off") == 0;
}

static char *cache_directory(void) {
    const char *chosen = moert_config_get()->cache_dir;
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (chosen[0] != '\0')
        return strdup(chosen);
    if (xdg != NULL && xdg[0] == '/')
        return moert_text_format("%s/moert", xdg);
    if (home != NULL && home[0] == '/')
        return moert_text_format("%s/.cache/moert", home);
    return NULL;
}

/* Returns the path of a file in the cache directory, and creates that directory. Returns NULL
 * without a cache. */
static char *path_of(const char *name, const char *ending) {
    char *directory = is_off() ? NULL : cache_directory(), *path = NULL;
    if (directory != NULL && moert_make_private_directories(directory) == MOERT_OK &&
        is_private(directory))
        path = moert_text_format("%s/%s%s", directory, name, ending);
    else if (!is_off())
        MOERT_DEBUG("kernels are not cached: no directory %s",
                    directory != NULL ? directory : "(no home)");
    free(directory);
    return path;
}

char *moert_cache_file(const char *name) {
    return path_of(name, "");
}

/* Reads the machine code of an entry. *data stays NULL if the entry is missing or damaged. */
static void read_entry(const char *path, unsigned char **data, size_t *bytes) {
    const int handle = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    FILE *file = handle >= 0 ? fdopen(handle, "rb") : NULL;
    struct stat info;
    moert_checksum stored, sum;
    if (file == NULL) {
        if (handle >= 0)
            close(handle);
        return;
    }
    if (fstat(handle, &info) == 0 && S_ISREG(info.st_mode) &&
        (size_t)info.st_size > sizeof stored &&
        moert_alloc(data, (size_t)info.st_size - sizeof stored, 1) == MOERT_OK) {
        *bytes = (size_t)info.st_size - sizeof stored;
        bool whole =
            fread(&stored, sizeof stored, 1, file) == 1 && fread(*data, 1, *bytes, file) == *bytes;
        sum = moert_checksum_of(*data, *bytes);
        if (!whole || memcmp(&stored, &sum, sizeof sum) != 0) {
            MOERT_DEBUG("the kernel cache entry %s is damaged", path);
            free(*data);
            *data = NULL;
        }
    }
    fclose(file);
}

static void unlock(moert_cache_entry *entry) {
    if (entry->lock >= 0)
        close(entry->lock);
    entry->lock = -1;
}

/* Waits for the lock of an entry, which another process holds during its compilation. After one
 * wait that ended without the lock, this process does not wait again: the holder may be stopped. */
static bool wait_for_lock(int handle, const char *path) {
    static atomic_bool waited_in_vain;
    const uint64_t start = moert_clock_ns();
    while (flock(handle, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return false;
        if (waited_in_vain || moert_clock_ns() - start > moert_cache_patience_ns) {
            waited_in_vain = true;
            warn_once("lock of the kernel cache", path, "another process keeps it");
            return false;
        }
        moert_phase_tick();
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    return true;
}

void moert_cache_open(const char *key, moert_cache_entry *entry, unsigned char **data,
                      size_t *bytes) {
    *entry = (moert_cache_entry){NULL, -1};
    *data = NULL;
    entry->path = key != NULL ? path_of(key, ".bin") : NULL;
    char *lock = entry->path != NULL ? path_of(key, ".lock") : NULL;
    if (lock != NULL) {
        read_entry(entry->path, data, bytes);
        if (*data == NULL)
            entry->lock = open(lock, O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (entry->lock >= 0) {
            if (!wait_for_lock(entry->lock, lock))
                unlock(entry);
            read_entry(entry->path, data, bytes); /* another process may have built the entry
                                                     meanwhile */
        }
        if (*data != NULL)
            unlock(entry);
    }
    free(lock);
}

void moert_cache_close(moert_cache_entry *entry, const unsigned char *data, size_t bytes) {
    char *temporary = entry->path != NULL && data != NULL
                          ? moert_text_format("%s.%ld", entry->path, (long)getpid())
                          : NULL;
    const int handle =
        temporary != NULL
            ? open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600)
            : -1;
    FILE *file = handle >= 0 ? fdopen(handle, "wb") : NULL;
    if (file != NULL) {
        const moert_checksum sum = moert_checksum_of(data, bytes);
        int written = fwrite(&sum, sizeof sum, 1, file) == 1;
        written &= fwrite(data, 1, bytes, file) == bytes;
        written &= fclose(file) == 0;
        if (!written || rename(temporary, entry->path) != 0) {
            MOERT_DEBUG("cannot write the kernel cache entry %s", entry->path);
            unlink(temporary);
        }
    }
    free(temporary);
    unlock(entry);
    free(entry->path);
}
