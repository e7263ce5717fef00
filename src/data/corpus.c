/* Finds the files of a corpus and reads them. Does not interpret the content of the files. */
#include "data/corpus.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"

static moert_status fail_on(const char *path, const char *verb) {
    return MOERT_FAIL(ERROR_IO, "cannot %s %s: %s", verb, path, strerror(errno));
}

/* Checks that the file can be read. */
static moert_status add_file(moert_corpus *corpus, const char *path) {
    struct stat about;
    moert_corpus_file file = {0};
    MOERT_TRY(MOERT_GROW(&corpus->files, &corpus->capacity, corpus->count + 1));
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return fail_on(path, "read");
    const int failed = fstat(descriptor, &about);
    close(descriptor);
    if (failed != 0)
        return fail_on(path, "read");
    if (!S_ISREG(about.st_mode))
        return MOERT_FAIL(ERROR_IO, "%s is not a regular file", path);
    file.bytes = (size_t)about.st_size;
    file.changed = about.st_mtim;
    MOERT_TRY(moert_text_path(&file.path, "%s", path));
    corpus->files[corpus->count++] = file;
    return MOERT_OK;
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name); /* alphasort would follow the locale */
}

static int is_child(const struct dirent *entry) {
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

static moert_status add_directory(moert_corpus *corpus, const char *path);

/* Adds a file of a directory. Refuses a Megatron dataset, whose tokens are not text. */
static moert_status add_text(moert_corpus *corpus, const char *path) {
    const size_t stem = strlen(path) - strlen(".bin");
    bool indexed = false;
    if (moert_text_ends_with(path, ".bin"))
        MOERT_TRY(moert_file_exists(&indexed, "%.*s.idx", (int)stem, path));
    if (indexed)
        return MOERT_FAIL(ERROR_USAGE,
                          "%s and its .idx are a Megatron dataset in a directory of text; give "
                          "--data %.*s, or move the two files elsewhere",
                          path, (int)stem, path);
    return add_file(corpus, path);
}

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
        status = add_text(corpus, path);
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
    for (size_t i = 0; i < corpus->count; i++)
        free(corpus->files[i].path);
    free(corpus->files);
    *corpus = (moert_corpus){0};
}

static moert_status check_unchanged(const moert_corpus_file *file, int descriptor) {
    struct stat about;
    if (fstat(descriptor, &about) != 0)
        return fail_on(file->path, "read");
    if ((size_t)about.st_size != file->bytes)
        return MOERT_FAIL(ERROR_IO,
                          "%s: had %zu bytes when it was opened and has %lld now; data must not "
                          "change during a run",
                          file->path, file->bytes, (long long)about.st_size);
    if (about.st_mtim.tv_sec != file->changed.tv_sec ||
        about.st_mtim.tv_nsec != file->changed.tv_nsec)
        return MOERT_FAIL(ERROR_IO,
                          "%s: was written to since it was opened; data must not change during a "
                          "run",
                          file->path);
    return MOERT_OK;
}

static moert_status read_range(const moert_corpus_file *file, int descriptor, size_t offset,
                               size_t bytes, unsigned char *content) {
    for (size_t at = 0; at < bytes;) {
        const ssize_t got = pread(descriptor, content + at, bytes - at, (off_t)(offset + at));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return MOERT_FAIL(ERROR_IO, "cannot read %s: %s at byte %zu of %zu", file->path,
                              got < 0 ? strerror(errno) : "end of file", offset + at, file->bytes);
        at += (size_t)got;
    }
    return MOERT_OK;
}

moert_status moert_corpus_read(const moert_corpus_file *file, size_t offset, size_t bytes,
                               void *content) {
    const int descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return fail_on(file->path, "read");
    moert_status status = check_unchanged(file, descriptor);
    if (status == MOERT_OK)
        status = read_range(file, descriptor, offset, bytes, content);
    close(descriptor);
    return status;
}
