/* Finds the files of a corpus and maps them. Does not interpret their content. */
#include "data/corpus.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"

/* Files below this size are read, not mapped: a process may have about 65,000 mappings, and a
 * source tree may have more files. */
enum { MAPPED_BYTES = 1 << 18 };

static moert_status fail_on(const char *path, const char *verb) {
    return MOERT_FAIL(ERROR_IO, "cannot %s %s: %s", verb, path, strerror(errno));
}

static moert_status read_all(int descriptor, moert_corpus_file *file) {
    unsigned char *content;
    MOERT_TRY(MOERT_NEW_ARRAY(&content, file->bytes));
    for (size_t at = 0; at < file->bytes;) {
        ssize_t got = read(descriptor, content + at, file->bytes - at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            free(content);
            return MOERT_FAIL(ERROR_IO, "cannot read %s: %s after %zu of %zu bytes", file->path,
                              got < 0 ? strerror(errno) : "end of file", at, file->bytes);
        }
        at += (size_t)got;
    }
    file->content = content;
    return MOERT_OK;
}

static moert_status map_all(int descriptor, moert_corpus_file *file) {
    void *memory = mmap(NULL, file->bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (memory == MAP_FAILED)
        return MOERT_FAIL(ERROR_IO, "cannot map %s (%zu bytes): %s", file->path, file->bytes,
                          strerror(errno));
    file->content = memory;
    file->mapped = true;
    return MOERT_OK;
}

static moert_status load(int descriptor, moert_corpus_file *file) {
    struct stat about;
    if (fstat(descriptor, &about) != 0)
        return fail_on(file->path, "read");
    if (!S_ISREG(about.st_mode))
        return MOERT_FAIL(ERROR_IO, "%s is not a regular file", file->path);
    file->bytes = (size_t)about.st_size;
    if (file->bytes == 0)
        return MOERT_OK;
    return file->bytes < MAPPED_BYTES ? read_all(descriptor, file) : map_all(descriptor, file);
}

static moert_status add_open(moert_corpus *corpus, const char *path, int descriptor) {
    MOERT_TRY(MOERT_GROW(&corpus->files, &corpus->capacity, corpus->count + 1));
    moert_corpus_file file = {.path = strdup(path)};
    if (file.path == NULL)
        return MOERT_FAIL(ERROR_MEMORY, "no room for a file name");
    moert_status status = load(descriptor, &file);
    if (status == MOERT_OK)
        corpus->files[corpus->count++] = file;
    else
        free(file.path);
    return status;
}

static moert_status add_file(moert_corpus *corpus, const char *path) {
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return fail_on(path, "read");
    moert_status status = add_open(corpus, path, descriptor);
    close(descriptor);
    return status;
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name); /* alphasort would follow the locale */
}

static int is_child(const struct dirent *entry) {
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

static moert_status add_directory(moert_corpus *corpus, const char *path);

static moert_status add_child(moert_corpus *corpus, const char *directory, const char *name) {
    struct stat about;
    moert_status status = MOERT_OK;
    char *path;
    MOERT_TRY(moert_text_path(&path, "%s%s%s", directory,
                              moert_text_ends_with(directory, "/") ? "" : "/", name));
    if (lstat(path, &about) != 0)
        status = fail_on(path, "read");
    else if (S_ISDIR(about.st_mode))
        status = add_directory(corpus, path);
    else if (S_ISREG(about.st_mode))
        status = add_file(corpus, path);
    else
        MOERT_DEBUG("skipping %s: a link or special file", path);
    free(path);
    return status;
}

static moert_status add_directory(moert_corpus *corpus, const char *path) {
    struct dirent **entries;
    moert_status status = MOERT_OK;
    int count = scandir(path, &entries, is_child, by_name);
    if (count < 0)
        return fail_on(path, "list");
    for (int i = 0; i < count; i++) {
        if (status == MOERT_OK)
            status = add_child(corpus, path, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return status;
}

moert_status moert_corpus_add(moert_corpus *corpus, const char *path) {
    struct stat about;
    if (stat(path, &about) != 0)
        return fail_on(path, "read");
    if (S_ISDIR(about.st_mode))
        return add_directory(corpus, path);
    if (S_ISREG(about.st_mode))
        return add_file(corpus, path);
    return MOERT_FAIL(ERROR_IO, "%s is neither a regular file nor a directory", path);
}

void moert_corpus_clear(moert_corpus *corpus) {
    for (size_t i = 0; i < corpus->count; i++) {
        moert_corpus_file *file = &corpus->files[i];
        if (file->mapped)
            munmap((void *)file->content, file->bytes);
        else
            free((void *)file->content);
        free(file->path);
    }
    free(corpus->files);
    *corpus = (moert_corpus){0};
}
