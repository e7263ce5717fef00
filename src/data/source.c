/* Opens token sources, and reads their tokens by position. */
#include "data/source.h"

#include <stdlib.h>
#include <string.h>

#include "base/files.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/json.h"

static moert_status load_text(moert_source *s, const char *const *paths, size_t count) {
    size_t content = 0;
    for (size_t i = 0; i < count; i++)
        MOERT_TRY(moert_corpus_add(&s->corpus, paths[i]));
    MOERT_TRY(MOERT_NEW_ARRAY(&s->starts, s->corpus.count));
    for (size_t i = 0; i < s->corpus.count; i++) {
        s->starts[i] = content + i; /* i separators precede file i */
        content += s->corpus.files[i].bytes;
    }
    if (content == 0)
        return MOERT_FAIL(ERROR_FORMAT, "no text in %zu files of %s%s", s->corpus.count, s->name,
                          count > 1 ? " and others" : "");
    s->type = "bytes";
    s->width = 1;
    s->documents = s->corpus.count;
    s->tokens = content + s->corpus.count - 1;
    return MOERT_OK;
}

/* Adds the file NAME + ending, which must not be a directory. */
static moert_status add_file(moert_source *s, const char *name, const char *ending) {
    const size_t before = s->corpus.count;
    char *path;
    MOERT_TRY(moert_text_path(&path, "%s%s", name, ending));
    moert_status status = moert_corpus_add(&s->corpus, path);
    if (status == MOERT_OK &&
        (s->corpus.count != before + 1 || strcmp(s->corpus.files[before].path, path) != 0))
        status = MOERT_FAIL(ERROR_IO, "%s is a directory; a token file is one regular file", path);
    free(path);
    return status;
}

static moert_status load_raw(moert_source *s, const char *path, unsigned bits) {
    if (bits != 16 && bits != 32)
        return MOERT_FAIL(ERROR_USAGE, "tokens have %u bits; expected 16 or 32 bits", bits);
    MOERT_TRY(add_file(s, path, ""));
    const size_t bytes = s->corpus.files[0].bytes;
    s->type = bits == 16 ? "uint16" : "uint32";
    s->width = bits / 8;
    if (bytes == 0 || bytes % s->width != 0)
        return MOERT_FAIL(ERROR_FORMAT, "%s: %zu bytes are no whole number of %u-bit tokens", path,
                          bytes, bits);
    s->documents = 1;
    s->tokens = bytes / s->width;
    return MOERT_OK;
}

/* Adds NAME.mask.bin, if it exists. */
static moert_status add_mask(moert_source *s, const char *name) {
    const size_t tokens = s->corpus.files[0].bytes / s->index.width;
    MOERT_TRY(moert_file_exists(&s->masked, "%s.mask.bin", name));
    if (!s->masked)
        return MOERT_OK;
    MOERT_TRY(add_file(s, name, ".mask.bin"));
    return s->corpus.files[2].bytes == tokens
               ? MOERT_OK
               : MOERT_FAIL(ERROR_FORMAT,
                            "%s: %zu bytes, but %s has %zu tokens; a mask has one byte a token",
                            s->corpus.files[2].path, s->corpus.files[2].bytes,
                            s->corpus.files[0].path, tokens);
}

/* The value of a key of NAME.dataset.json, or -1 if it is absent or null. */
static moert_status read_number(const char *path, const json_t *object, const char *key,
                                json_int_t *number) {
    const json_t *value = json_object_get(object, key);
    *number = -1;
    if (value == NULL || json_is_null(value))
        return MOERT_OK;
    *number = json_integer_value(value);
    return json_is_integer(value) && *number >= 0 && *number <= INT32_MAX
               ? MOERT_OK
               : MOERT_FAIL(ERROR_FORMAT, "%s: \"%s\" is no number within 0..%d", path, key,
                            INT32_MAX);
}

/* Reads NAME.dataset.json, if it exists. */
static moert_status read_about(moert_source *s, const char *name) {
    enum { MOST_BYTES = 1 << 16 };
    json_int_t vocabulary = -1, end = -1;
    json_t *object = NULL;
    char *path;
    bool exists;
    MOERT_TRY(moert_file_exists(&exists, "%s.dataset.json", name));
    if (!exists)
        return MOERT_OK;
    MOERT_TRY(moert_text_path(&path, "%s.dataset.json", name));
    moert_status status;
    MOERT_TRY_OR(done, moert_json_read(path, "the dataset's tokenizer", MOST_BYTES, &object));
    MOERT_TRY_OR(done, read_number(path, object, "vocabulary", &vocabulary));
    MOERT_TRY_OR(done, read_number(path, object, "end", &end));
done:
    json_decref(object);
    free(path);
    s->vocabulary_made = vocabulary > 0 ? (size_t)vocabulary : 0;
    s->end_made = (int32_t)end;
    return status;
}

static moert_status load_indexed(moert_source *s, const char *name) {
    MOERT_TRY(add_file(s, name, ".bin"));
    MOERT_TRY(add_file(s, name, ".idx"));
    MOERT_TRY(moert_index_read(&s->corpus.files[1], &s->corpus.files[0], &s->index));
    MOERT_TRY(add_mask(s, name));
    MOERT_TRY(read_about(s, name));
    if (s->index.tokens == 0)
        return MOERT_FAIL(ERROR_FORMAT, "%s.idx: its %zu documents hold no tokens", name,
                          s->index.documents);
    s->type = s->index.type;
    s->width = s->index.width;
    s->documents = s->index.documents;
    s->tokens = s->index.tokens;
    return MOERT_OK;
}

static moert_status load(moert_source *s, const char *const *paths, size_t count, unsigned bits) {
    MOERT_TRY(moert_text_path(&s->name, "%s", count > 0 ? paths[0] : "nothing"));
    MOERT_TRY(s->kind == MOERT_SOURCE_TEXT  ? load_text(s, paths, count)
              : s->kind == MOERT_SOURCE_RAW ? load_raw(s, paths[0], bits)
                                            : load_indexed(s, paths[0]));
    return moert_source_identify(s);
}

static moert_status open_kind(moert_source_kind kind, const char *const *paths, size_t count,
                              unsigned bits, moert_source **source) {
    moert_source *made;
    MOERT_TRY(MOERT_NEW(&made));
    made->kind = kind;
    made->end_made = -1;
    made->vocabulary = (uint64_t)INT32_MAX + 1;
    const moert_status status = load(made, paths, count, bits);
    if (status == MOERT_OK)
        *source = made;
    else
        moert_source_close(made);
    return status;
}

moert_status moert_source_open_text(const char *const *paths, size_t count, moert_source **source) {
    return open_kind(MOERT_SOURCE_TEXT, paths, count, 0, source);
}

moert_status moert_source_open_raw(const char *path, unsigned bits, moert_source **source) {
    return open_kind(MOERT_SOURCE_RAW, &path, 1, bits, source);
}

/* *name = the name without ending, for the caller to free, if `path` names a Megatron dataset, else
 * NULL. */
static moert_status find_dataset(const char *path, char **name) {
    const bool ends = moert_text_ends_with(path, ".bin") || moert_text_ends_with(path, ".idx");
    bool itself = false, binary = false, index = false;
    MOERT_TRY(moert_text_path(name, "%.*s", (int)(strlen(path) - (ends ? 4 : 0)), path));
    moert_status status;
    MOERT_TRY_OR(done, moert_file_exists(&itself, "%s", path));
    MOERT_TRY_OR(done, moert_file_exists(&binary, "%s.bin", *name));
    MOERT_TRY_OR(done, moert_file_exists(&index, "%s.idx", *name));
done:
    if (status != MOERT_OK || !binary || !index || itself != ends) {
        free(*name);
        *name = NULL;
    }
    return status;
}

static moert_status check_text(const char *const *paths, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char *name;
        MOERT_TRY(find_dataset(paths[i], &name));
        const bool is_dataset = name != NULL;
        free(name);
        if (is_dataset || moert_text_ends_with(paths[i], ".bin"))
            return MOERT_FAIL(ERROR_USAGE,
                              "%s holds tokens, and cannot be joined with the text of other paths",
                              paths[i]);
    }
    return MOERT_OK;
}

moert_status moert_source_open(const char *const *paths, size_t count, unsigned bits,
                               moert_source **source) {
    char *name = NULL;
    if (count > 1)
        MOERT_TRY(check_text(paths, count));
    if (count == 1)
        MOERT_TRY(find_dataset(paths[0], &name));
    if (name != NULL) {
        const char *const names[] = {name};
        const moert_status status = open_kind(MOERT_SOURCE_INDEXED, names, 1, 0, source);
        free(name);
        return status;
    }
    if (count == 1 && moert_text_ends_with(paths[0], ".bin"))
        return moert_source_open_raw(paths[0], bits, source);
    return moert_source_open_text(paths, count, source);
}

void moert_source_close(moert_source *source) {
    if (source == NULL)
        return;
    moert_corpus_clear(&source->corpus);
    moert_index_free(&source->index);
    MOERT_FREE(source->name, source->sums, source->starts, source);
}

/* ---- documents ---- */

size_t moert_source_start(const moert_source *source, size_t document) {
    if (source->kind == MOERT_SOURCE_INDEXED)
        return moert_index_document(&source->index, document);
    if (document == source->documents)
        return source->tokens;
    return source->kind == MOERT_SOURCE_TEXT ? source->starts[document] : 0;
}

size_t moert_source_length(const moert_source *source, size_t document) {
    if (source->kind == MOERT_SOURCE_TEXT)
        return source->corpus.files[document].bytes;
    return moert_source_start(source, document + 1) - moert_source_start(source, document);
}

size_t moert_source_document(const moert_source *source, size_t position) {
    size_t below = 0;
    for (size_t above = source->documents; above - below > 1;) {
        const size_t middle = below + (above - below) / 2;
        if (moert_source_start(source, middle) <= position)
            below = middle;
        else
            above = middle;
    }
    return below;
}

/* ---- tokens ---- */

/* Tokens that lie one after another in a file, from byte `offset` on. The 0 byte between two files
 * of text is a run with `file` NULL. */
typedef struct run {
    const moert_corpus_file *file;
    size_t offset, tokens;
} run;

/* The last of `count` starts that is at most `position`. */
static size_t last_at(const size_t *starts, size_t count, size_t position) {
    size_t below = 0;
    for (size_t above = count; above - below > 1;) {
        const size_t middle = below + (above - below) / 2;
        if (starts[middle] <= position)
            below = middle;
        else
            above = middle;
    }
    return below;
}

static run run_at(const moert_source *s, size_t position) {
    const moert_index *index = &s->index;
    if (s->kind == MOERT_SOURCE_TEXT) {
        const size_t at = moert_source_document(s, position), offset = position - s->starts[at];
        const moert_corpus_file *file = &s->corpus.files[at];
        return offset < file->bytes ? (run){file, offset, file->bytes - offset} : (run){NULL, 0, 1};
    }
    if (index->positions == NULL)
        return (run){&s->corpus.files[0], position * s->width, s->tokens - position};
    const size_t at = last_at(index->starts, index->sequences, position);
    return (run){&s->corpus.files[0],
                 index->positions[at] + (position - index->starts[at]) * s->width,
                 index->starts[at + 1] - position};
}

static int64_t token_at(const moert_source *s, const unsigned char *bytes, size_t i) {
    uint64_t value = 0;
    bytes += i * s->width;
    for (unsigned k = s->width; k-- > 0;)
        value = value << 8 | bytes[k];
    const bool is_int32 = s->kind == MOERT_SOURCE_INDEXED && s->width == 4;
    return is_int32 ? (int32_t)(uint32_t)value : (int64_t)value;
}

/* Reads the first `count` tokens of a run. `bytes` is scratch with room for these tokens. */
static moert_status read_part(const moert_source *s, const run *from, size_t count,
                              unsigned char *bytes, int32_t *tokens) {
    MOERT_TRY(moert_corpus_read(from->file, from->offset, count * s->width, bytes));
    for (size_t i = 0; i < count; i++) {
        const int64_t token = token_at(s, bytes, i);
        if ((uint64_t)token >= s->vocabulary)
            return MOERT_FAIL(ERROR_MISMATCH,
                              "%s, position %zu: token %lld is not below the vocabulary of %llu",
                              from->file->path, from->offset / s->width + i, (long long)token,
                              (unsigned long long)s->vocabulary);
        tokens[i] = (int32_t)token;
    }
    return MOERT_OK;
}

moert_status moert_source_read(const moert_source *source, size_t position, size_t count,
                               int32_t *tokens) {
    unsigned char bytes[1 << 16];
    for (size_t done = 0; done < count;) {
        const run from = run_at(source, position + done);
        size_t part = moert_min(from.tokens, count - done);
        if (from.file != NULL) {
            part = moert_min(part, sizeof bytes / source->width);
            MOERT_TRY(read_part(source, &from, part, bytes, tokens + done));
        } else {
            tokens[done] = 0;
        }
        done += part;
    }
    return MOERT_OK;
}

moert_status moert_source_read_mask(const moert_source *source, size_t position, size_t count,
                                    unsigned char *counts) {
    const moert_corpus_file *mask = &source->corpus.files[2];
    for (size_t done = 0; done < count;) {
        const run from = run_at(source, position + done);
        const size_t part = moert_min(from.tokens, count - done);
        MOERT_TRY(moert_corpus_read(mask, from.offset / source->width, part, counts + done));
        done += part;
    }
    for (size_t i = 0; i < count; i++)
        if (counts[i] > 1)
            return MOERT_FAIL(ERROR_FORMAT, "%s: the mask has the value %u; expected 0 or 1",
                              mask->path, counts[i]);
    return MOERT_OK;
}

moert_status moert_source_mask_targets(const moert_source *source, size_t position, size_t length,
                                       int32_t *target) {
    unsigned char counts[4096];
    for (size_t at = 0; at < length; at += sizeof counts) {
        const size_t part = moert_min(sizeof counts, length - at);
        MOERT_TRY(moert_source_read_mask(source, position + 1 + at, part, counts));
        for (size_t i = 0; i < part; i++)
            if (counts[i] == 0)
                target[at + i] = -1;
    }
    return MOERT_OK;
}

moert_status moert_source_limit(moert_source *source, size_t vocabulary) {
    int32_t tokens[4096];
    source->vocabulary = vocabulary;
    if (moert_source_bytes(source) > MOERT_SOURCE_WHOLE_BYTES ||
        (source->kind == MOERT_SOURCE_TEXT && vocabulary >= 256))
        return MOERT_OK;
    for (size_t at = 0; at < source->tokens; at += MOERT_COUNT(tokens))
        MOERT_TRY(moert_source_read(source, at, moert_min(MOERT_COUNT(tokens), source->tokens - at),
                                    tokens));
    return MOERT_OK;
}
