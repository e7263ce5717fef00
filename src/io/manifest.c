/* Computes, writes and compares the checksums of a directory's files. */
#include "io/manifest.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "base/memory.h"
#include "base/parallel.h"
#include "base/phase.h"
#include "base/text.h"
#include "io/durable.h"
#include "io/internal.h"

enum { FORMAT = 1, LIMIT_BYTES = 100000000, HEX = MOERT_CHECKSUM_DIGITS };

static const char file_name[] = "manifest.json";

typedef struct part {
    char *name; /* name of the tensor; NULL for a header or a whole file */
    size_t file, begin, bytes;
    size_t first_piece, pieces;
    moert_checksum sum;
} part;

typedef struct listed_file {
    char *name, *path;
    int handle; /* file descriptor while checksums are computed, else -1 */
    size_t bytes, first_part, parts;
} listed_file;

struct moert_manifest {
    char *directory;
    listed_file *files;
    part *parts;          /* parts of all files, in the order of the files */
    moert_checksum *sums; /* [pieces] checksums of all parts' pieces, in the order of the parts */
    size_t file_count, file_room, part_count, part_room, pieces, piece_room;
};

void moert_manifest_free(moert_manifest *m) {
    if (m == NULL)
        return;
    for (size_t i = 0; i < m->file_count; i++)
        MOERT_FREE(m->files[i].name, m->files[i].path);
    for (size_t i = 0; i < m->part_count; i++)
        free(m->parts[i].name);
    MOERT_FREE(m->files, m->parts, m->sums, m->directory, m);
}

const char *moert_manifest_directory(const moert_manifest *m) {
    return m->directory;
}

size_t moert_manifest_pieces(const moert_manifest *m) {
    return m->pieces;
}

moert_checksum *moert_manifest_sums(moert_manifest *m) {
    return m->sums;
}

/* ---- files and their parts ---- */

moert_status moert_manifest_create(const char *directory, moert_manifest **manifest) {
    moert_manifest *m;
    MOERT_TRY(MOERT_NEW(&m));
    const moert_status status = moert_text_path(&m->directory, "%s", directory);
    if (status == MOERT_OK)
        *manifest = m;
    else
        free(m);
    return status;
}

/* Adds a file, still without parts. */
static moert_status add_file(moert_manifest *m, const char *name) {
    MOERT_TRY(MOERT_GROW(&m->files, &m->file_room, m->file_count + 1));
    listed_file *file = &m->files[m->file_count++];
    *file = (listed_file){.handle = -1, .first_part = m->part_count};
    MOERT_TRY(moert_text_path(&file->name, "%s", name));
    MOERT_TRY(moert_text_path(&file->path, "%s/%s", m->directory, name));
    int handle;
    MOERT_TRY(moert_file_open(file->path, &handle, &file->bytes));
    close(handle);
    return MOERT_OK;
}

/* Adds a part to the last file. */
static moert_status add_part(moert_manifest *m, const char *name, size_t bytes) {
    listed_file *file = &m->files[m->file_count - 1];
    MOERT_TRY(MOERT_GROW(&m->parts, &m->part_room, m->part_count + 1));
    const part *last = file->parts > 0 ? &m->parts[m->part_count - 1] : NULL;
    part *p = &m->parts[m->part_count];
    *p = (part){.file = m->file_count - 1,
                .begin = last != NULL ? last->begin + last->bytes : 0,
                .bytes = bytes,
                .first_piece = m->pieces,
                .pieces = moert_ceil_div(bytes, MOERT_PIECE_BYTES)};
    if (bytes > file->bytes - p->begin)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: has %zu bytes, its manifest lists more (was it cut? if it was "
                          "changed on purpose, remove manifest.json)",
                          file->path, file->bytes);
    MOERT_TRY(MOERT_GROW(&m->sums, &m->piece_room, m->pieces + p->pieces));
    m->part_count++;
    m->pieces += p->pieces;
    file->parts++;
    return name != NULL ? moert_text_path(&p->name, "%s", name) : MOERT_OK;
}

/* Adds the header and the tensors of a safetensors file as parts. */
static moert_status add_tensors(moert_manifest *m, const listed_file *file) {
    moert_shard shard;
    MOERT_TRY(moert_shard_open(file->path, &shard));
    size_t data = 0;
    for (size_t i = 0; i < shard.count; i++)
        data += shard.tensors[i].bytes;
    qsort(shard.tensors, shard.count, sizeof *shard.tensors, moert_compare_positions);
    moert_status status = add_part(m, NULL, file->bytes - data);
    for (size_t i = 0; i < shard.count && status == MOERT_OK; i++)
        status = add_part(m, shard.tensors[i].name, shard.tensors[i].bytes);
    moert_shard_close(&shard);
    return status;
}

moert_status moert_manifest_add(moert_manifest *m, const char *name) {
    MOERT_TRY(add_file(m, name));
    const listed_file *file = &m->files[m->file_count - 1];
    return moert_text_ends_with(name, ".safetensors") ? add_tensors(m, file)
                                                      : add_part(m, NULL, file->bytes);
}

/* ---- checksums ---- */

moert_checksum *moert_manifest_find(moert_manifest *m, const char *path, size_t offset,
                                    size_t bytes) {
    size_t f = 0;
    while (f < m->file_count && strcmp(m->files[f].path, path) != 0)
        f++;
    if (f == m->file_count)
        return NULL;
    size_t low = m->files[f].first_part, high = low + m->files[f].parts;
    const size_t end = high;
    while (low < high) { /* finds the first part that ends after `offset` */
        const size_t middle = low + (high - low) / 2;
        if (m->parts[middle].begin + m->parts[middle].bytes <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == end || m->parts[low].begin != offset || m->parts[low].bytes != bytes)
        return NULL;
    return m->sums + m->parts[low].first_piece;
}

typedef struct summing {
    moert_manifest *manifest;
    size_t first;
    _Atomic size_t bad; /* 1 + the index of a piece that cannot be read; 0: no such piece */
    _Atomic int reason; /* errno of the failed read of the piece; 0: the file has become shorter */
} summing;

/* The part that a piece belongs to: the last part that has pieces and begins at or before this
 * piece. */
static const part *part_of(const moert_manifest *m, size_t piece) {
    size_t low = 0, high = m->part_count;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        *(m->parts[middle].first_piece <= piece ? &low : &high) = middle;
    }
    return &m->parts[low];
}

static bool read_piece(const moert_manifest *m, size_t piece, char *data, size_t *bytes,
                       int *reason) {
    const part *p = part_of(m, piece);
    const size_t at = (piece - p->first_piece) * MOERT_PIECE_BYTES;
    *bytes = moert_min(p->bytes - at, MOERT_PIECE_BYTES);
    for (size_t done = 0; done < *bytes;) {
        const ssize_t got = pread(m->files[p->file].handle, data + done, *bytes - done,
                                  (off_t)(p->begin + at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            *reason = got < 0 ? errno : 0;
            return false;
        }
        done += (size_t)got;
    }
    return true;
}

static void sum_pieces(void *context, size_t first, size_t end) {
    summing *s = context;
    size_t bytes;
    int reason = ENOMEM;
    char *data = NULL; /* allocated only if a checksum is missing */
    for (size_t i = s->first + first; i < s->first + end; i++) {
        if (moert_piece_is_summed(&s->manifest->sums[i]))
            continue;
        if (data == NULL)
            data = malloc(MOERT_PIECE_BYTES);
        if (data == NULL || !read_piece(s->manifest, i, data, &bytes, &reason)) {
            s->reason = reason;
            s->bad = i + 1;
            break;
        }
        s->manifest->sums[i] = moert_checksum_of(data, bytes);
        moert_phase_tick();
    }
    free(data);
}

/* Opens the files of the pieces whose checksums are missing. A file that other hosts wrote must be
 * opened after they closed it. */
static moert_status open_files(moert_manifest *m, size_t first, size_t count) {
    size_t bytes;
    for (size_t i = first; i < first + count; i++) {
        if (moert_piece_is_summed(&m->sums[i]))
            continue;
        listed_file *file = &m->files[part_of(m, i)->file];
        if (file->handle < 0)
            MOERT_TRY(moert_file_open(file->path, &file->handle, &bytes));
    }
    return MOERT_OK;
}

moert_status moert_manifest_sum(moert_manifest *m, size_t first, size_t count) {
    summing s = {.manifest = m, .first = first};
    moert_status status;
    MOERT_TRY_OR(done, open_files(m, first, count));
    moert_parallel(count, 4, sum_pieces, &s);
    if (s.bad != 0) {
        const char *path = m->files[part_of(m, s.bad - 1)->file].path;
        status = s.reason == ENOMEM
                     ? MOERT_FAIL(ERROR_MEMORY, "%s: no memory to read it", path)
                     : MOERT_FAIL(ERROR_IO, "%s: cannot be read: %s", path,
                                  s.reason != 0 ? strerror(s.reason) : "it became shorter");
    }
done:
    for (size_t i = 0; i < m->file_count; i++)
        moert_close_files(&m->files[i].handle, 1);
    return status;
}

moert_status moert_manifest_sum_heads(moert_manifest *m) {
    for (size_t i = 0; i < m->part_count; i++)
        if (m->parts[i].name == NULL)
            MOERT_TRY(moert_manifest_sum(m, m->parts[i].first_piece, m->parts[i].pieces));
    return MOERT_OK;
}

/* Computes the checksum of a part from its pieces' checksums; false if a piece has no checksum. */
static bool sum_part(const moert_manifest *m, const part *p, moert_checksum *sum) {
    const moert_checksum *sums = m->sums + p->first_piece;
    for (size_t i = 0; i < p->pieces; i++)
        if (!moert_piece_is_summed(&sums[i]))
            return false;
    *sum = moert_checksum_of(sums, p->pieces * sizeof *sums);
    return true;
}

moert_status moert_manifest_compare(const moert_manifest *m) {
    for (size_t i = 0; i < m->part_count; i++) {
        const part *p = &m->parts[i];
        const listed_file *file = &m->files[p->file];
        moert_checksum sum;
        if (!sum_part(m, p, &sum) || memcmp(&sum, &p->sum, sizeof sum) == 0)
            continue;
        char found[HEX + 1], expected[HEX + 1], what[256] = "";
        if (p->name != NULL)
            snprintf(what, sizeof what, "tensor '%.200s' ", p->name);
        else if (file->parts > 1)
            snprintf(what, sizeof what, "its header ");
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: %sis not as it was written: checksum %s, not %s (is the disk "
                          "intact? if it was changed on purpose, remove manifest.json)",
                          file->path, what, moert_checksum_text(sum, found),
                          moert_checksum_text(p->sum, expected));
    }
    return MOERT_OK;
}

/* ---- writing ---- */

/* The JSON entry of a file; NULL if memory runs out. */
static json_t *json_of_file(const moert_manifest *m, const listed_file *file) {
    json_t *parts = json_array();
    char hex[HEX + 1];
    for (size_t i = file->first_part; i < file->first_part + file->parts; i++) {
        const part *p = &m->parts[i];
        moert_checksum sum = {{0}};
        sum_part(m, p, &sum);
        if (json_array_append_new(parts, json_pack("{ss* sI ss}", "name", p->name, "bytes",
                                                   (json_int_t)p->bytes, "xxh3",
                                                   moert_checksum_text(sum, hex))) != 0) {
            json_decref(parts);
            return NULL;
        }
    }
    return json_pack("{sI so}", "bytes", (json_int_t)file->bytes, "parts", parts);
}

/* The last lines of a manifest: the checksum of the text before them. */
#define ENDING_HEAD ",\n \"xxh3\": \""
#define ENDING_TAIL "\"\n}\n"
enum { ENDING_BYTES = sizeof ENDING_HEAD - 1 + HEX + sizeof ENDING_TAIL - 1 };

/* Writes the ending of a manifest. text[bytes] is the text of the manifest before the ending. */
static void make_ending(const char *text, size_t bytes, char ending[ENDING_BYTES + 1]) {
    char hex[HEX + 1];
    snprintf(ending, ENDING_BYTES + 1, ENDING_HEAD "%s" ENDING_TAIL,
             moert_checksum_text(moert_checksum_of(text, bytes), hex));
}

moert_status moert_manifest_write(const moert_manifest *m) {
    bool whole = true;
    json_t *files = json_object();
    for (size_t i = 0; i < m->file_count; i++)
        whole &= json_object_set_new(files, m->files[i].name, json_of_file(m, &m->files[i])) == 0;
    json_t *root = json_pack("{si so}", "format", FORMAT, "files", files);
    char *text = NULL;
    moert_status status = moert_json_text(file_name, whole ? root : NULL,
                                          JSON_INDENT(1) | JSON_PRESERVE_ORDER, &text);
    json_decref(root);
    MOERT_TRY(status);
    char ending[ENDING_BYTES + 1];
    text[strlen(text) - strlen("\n}")] = '\0'; /* cuts off the closing brace, which the ending
                                                  contains */
    make_ending(text, strlen(text), ending);
    char *all = moert_text_format("%s%s", text, ending);
    status = all != NULL ? moert_durable_write_in(m->directory, file_name, all)
                         : MOERT_FAIL(ERROR_MEMORY, "no room for %s", file_name);
    MOERT_FREE(all, text);
    return status;
}

/* ---- reading ---- */

static bool is_whole(const char *text) {
    const size_t bytes = strlen(text);
    char ending[ENDING_BYTES + 1];
    if (bytes <= ENDING_BYTES)
        return false;
    make_ending(text, bytes - ENDING_BYTES, ending);
    return strcmp(text + bytes - ENDING_BYTES, ending) == 0;
}

static bool parse_checksum(const char *text, moert_checksum *sum) {
    if (text == NULL || strlen(text) != HEX || strspn(text, "0123456789abcdef") != HEX)
        return false;
    for (size_t i = 0; i < sizeof sum->byte; i++) {
        const char pair[] = {text[2 * i], text[2 * i + 1], '\0'};
        sum->byte[i] = (unsigned char)strtoul(pair, NULL, 16);
    }
    return true;
}

static moert_status parse_file(moert_manifest *m, const char *path, const char *name,
                               const json_t *given) {
    const json_t *bytes = json_object_get(given, "bytes"), *list = json_object_get(given, "parts");
    const json_t *entry;
    size_t index, total = 0;
    if (name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL || !json_is_integer(bytes) ||
        !json_is_array(list))
        return MOERT_FAIL(ERROR_FORMAT, "%s: the entry '%.200s' does not describe a file", path,
                          name);
    MOERT_TRY(add_file(m, name));
    const listed_file *file = &m->files[m->file_count - 1];
    if ((json_int_t)file->bytes != json_integer_value(bytes))
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: has %zu bytes, but %s says %lld (was it cut? if it was changed on "
                          "purpose, remove manifest.json)",
                          file->path, file->bytes, file_name, (long long)json_integer_value(bytes));
    json_array_foreach(list, index, entry) {
        const json_int_t size = json_integer_value(json_object_get(entry, "bytes"));
        if (size < 0)
            return MOERT_FAIL(ERROR_FORMAT, "%s: part %zu of %s has a negative size, %lld bytes",
                              path, index, name, (long long)size);
        MOERT_TRY(add_part(m, json_string_value(json_object_get(entry, "name")), (size_t)size));
        if (!parse_checksum(json_string_value(json_object_get(entry, "xxh3")),
                            &m->parts[m->part_count - 1].sum))
            return MOERT_FAIL(ERROR_FORMAT, "%s: part %zu of %s has no checksum", path, index,
                              name);
        total += (size_t)size;
    }
    return total == file->bytes
               ? MOERT_OK
               : MOERT_FAIL(ERROR_FORMAT, "%s: the parts of %s have %zu bytes, not %zu", path, name,
                            total, file->bytes);
}

static moert_status parse_files(const char *directory, const char *path, json_t *root,
                                moert_manifest **made) {
    const json_int_t format = json_integer_value(json_object_get(root, "format"));
    json_t *files = json_object_get(root, "files"), *entry;
    const char *name;
    if (format != FORMAT || !json_is_object(files))
        return MOERT_FAIL(ERROR_FORMAT, "%s: has format %lld, but this version reads format %d",
                          path, (long long)format, FORMAT);
    MOERT_TRY(moert_manifest_create(directory, made));
    json_object_foreach(files, name, entry) {
        MOERT_TRY(parse_file(*made, path, name, entry));
    }
    return MOERT_OK;
}

static moert_status parse(const char *directory, const char *path, const char *text,
                          moert_manifest **made) {
    json_t *root;
    if (!is_whole(text))
        return MOERT_FAIL(ERROR_FORMAT, "%s: is not as it was written (is the disk intact?)", path);
    MOERT_TRY(moert_json_parse(path, "the manifest", text, strlen(text), &root));
    const moert_status status = parse_files(directory, path, root, made);
    json_decref(root);
    return status;
}

moert_status moert_manifest_read(const char *directory, moert_manifest **manifest) {
    char *path, *text = NULL;
    moert_manifest *made = NULL;
    moert_status status;
    mode_t there;
    *manifest = NULL;
    MOERT_TRY(moert_text_path(&path, "%s/%s", directory, file_name));
    MOERT_TRY_OR(done, moert_file_mode(path, true, &there));
    if (there == 0)
        goto done;
    MOERT_TRY_OR(done, moert_read_text(path, LIMIT_BYTES, &text));
    MOERT_TRY_OR(done, parse(directory, path, text, &made));
    *manifest = made;
    made = NULL;
done:
    moert_manifest_free(made);
    MOERT_FREE(text, path);
    return status;
}

moert_status moert_manifest_check(const char *directory, size_t *bytes) {
    moert_manifest *m;
    moert_status status;
    *bytes = 0;
    MOERT_TRY(moert_manifest_read(directory, &m));
    if (m == NULL)
        return MOERT_OK;
    MOERT_TRY_OR(done, moert_manifest_sum(m, 0, m->pieces));
    MOERT_TRY_OR(done, moert_manifest_compare(m));
    for (size_t i = 0; i < m->file_count; i++)
        *bytes += m->files[i].bytes;
done:
    moert_manifest_free(m);
    return status;
}
