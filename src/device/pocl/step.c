/*
 * Stores the files that PoCL adds in a step, and unpacks them in another process. An entry of the
 * cache is a sequence of files: a header, the name within the directory, the content. Files that
 * are part of an entry get the modification time 0.
 */
#include "device/pocl/pocl.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"

typedef struct file_header {
    uint64_t name_bytes, bytes; /* the name with its final NUL */
} file_header;

static const struct timespec stored[2];

/* Appends a file to `out` and marks it as stored. */
static bool pack_file(FILE *out, const char *path, const char *name, size_t bytes) {
    const file_header header = {strlen(name) + 1, bytes};
    char *content = NULL;
    FILE *in = fopen(path, "rbe");
    bool whole = in != NULL && moert_alloc(&content, bytes, 1) == MOERT_OK &&
                 fread(content, 1, bytes, in) == bytes &&
                 fwrite(&header, sizeof header, 1, out) == 1 &&
                 fwrite(name, 1, header.name_bytes, out) == header.name_bytes &&
                 fwrite(content, 1, bytes, out) == bytes;
    if (in != NULL)
        fclose(in);
    free(content);
    return whole && utimensat(AT_FDCWD, path, stored, 0) == 0;
}

/* packed->text = all files that are not yet part of an entry; NULL if there are none or memory runs
 * out. Empty files are temporary. */
static void pack(moert_text_stream *packed) {
    if (moert_text_open("compiled kernels", packed) != MOERT_OK)
        return;
    const char *directory = moert_pocl_directory();
    FTS *walk = moert_pocl_walk(directory);
    bool whole = walk != NULL;
    for (FTSENT *at; whole && (at = fts_read(walk)) != NULL;)
        if (at->fts_info == FTS_F && at->fts_statp->st_size > 0 && at->fts_statp->st_mtime != 0)
            whole = pack_file(packed->file, at->fts_path, at->fts_path + strlen(directory) + 1,
                              (size_t)at->fts_statp->st_size);
    if (walk != NULL)
        fts_close(walk);
    if (moert_text_close(packed) == MOERT_OK && whole && packed->bytes > 0)
        return;
    free(packed->text);
    packed->text = NULL;
}

static bool make_parent(const char *path) {
    char *parent = moert_text_format("%.*s", (int)(strrchr(path, '/') - path), path);
    const bool made = parent != NULL && moert_make_private_directories(parent) == MOERT_OK;
    free(parent);
    return made;
}

/* Writes a file unless it exists. The file gets its name only when it is complete, so that PoCL
 * finds no partial file. */
static bool unpack_file(const char *name, const unsigned char *content, size_t bytes) {
    char *path = moert_text_format("%s/%s", moert_pocl_directory(), name);
    char *temporary = path != NULL ? moert_text_format("%s.new", path) : NULL;
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
    bool whole = false;
    if (temporary == NULL)
        goto free_paths;
    whole = access(path, F_OK) == 0;
    if (whole)
        goto free_paths;
    int handle = open(temporary, flags, 0700);
    if (handle < 0 && make_parent(temporary))
        handle = open(temporary, flags, 0700);
    if (handle < 0)
        goto free_paths;
    whole = write(handle, content, bytes) == (ssize_t)bytes && futimens(handle, stored) == 0;
    whole &= close(handle) == 0;
    whole = whole && rename(temporary, path) == 0;
    if (!whole)
        unlink(temporary);
free_paths:
    MOERT_FREE(temporary, path);
    return whole;
}

/* Returns whether the entry is complete and all its files are in the directory. */
static bool unpack(const unsigned char *data, size_t bytes) {
    while (bytes > 0) {
        file_header header;
        if (bytes < sizeof header)
            return false;
        memcpy(&header, data, sizeof header);
        data += sizeof header;
        bytes -= sizeof header;
        if (header.name_bytes == 0 || header.name_bytes > bytes ||
            header.bytes > bytes - header.name_bytes || data[header.name_bytes - 1] != '\0' ||
            strstr((const char *)data, "..") != NULL || /* the path leads out of the directory */
            !unpack_file((const char *)data, data + header.name_bytes, header.bytes))
            return false;
        data += header.name_bytes + header.bytes;
        bytes -= header.name_bytes + header.bytes;
    }
    return true;
}

moert_status moert_pocl_begin(const char *key, const char *what, moert_pocl_step *step) {
    unsigned char *data = NULL;
    size_t bytes = 0;
    *step = (moert_pocl_step){.entry.lock = -1};
    if (moert_pocl_directory() == NULL)
        return MOERT_OK;
    moert_cache_open(key, &step->entry, &data, &bytes);
    step->compiles = data == NULL || !unpack(data, bytes);
    free(data);
    const moert_status status = moert_pocl_prepare(what, step->compiles);
    if (status != MOERT_OK)
        moert_pocl_end(step, false);
    return status;
}

void moert_pocl_end(moert_pocl_step *step, bool done) {
    moert_text_stream packed = {.text = NULL};
    if (step->compiles && done && step->entry.path != NULL)
        pack(&packed);
    moert_cache_close(&step->entry, (const unsigned char *)packed.text, packed.bytes);
    free(packed.text);
}
