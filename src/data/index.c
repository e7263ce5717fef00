/* Reads and checks Megatron's index files. Does not read tokens. */
#include "data/index.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { MAGIC_BYTES = 9, HEADER_BYTES = 34 };
static const char magic[MAGIC_BYTES] = "MMIDIDX\0";

/* An array of the file, read in order through a buffer. */
typedef struct reader {
    const moert_corpus_file *file;
    size_t at; /* next byte of the file to read into the buffer */
    size_t used, held;
    unsigned char bytes[1 << 16];
} reader;

static uint64_t little(const unsigned char *bytes, size_t width) {
    uint64_t value = 0;
    for (size_t i = width; i-- > 0;)
        value = value << 8 | bytes[i];
    return value;
}

/* *value = the next number, which has `width` bytes. `width` must divide the size of the buffer. */
static moert_status next(reader *from, size_t width, int64_t *value) {
    if (from->used == from->held) {
        const size_t bytes = moert_min(sizeof from->bytes, from->file->bytes - from->at);
        MOERT_TRY(moert_corpus_read(from->file, from->at, bytes, from->bytes));
        from->at += bytes;
        from->used = 0;
        from->held = bytes;
    }
    const uint64_t bits = little(from->bytes + from->used, width);
    *value = width == 4 ? (int32_t)(uint32_t)bits : (int64_t)bits;
    from->used += width;
    return MOERT_OK;
}

static void seek(reader *from, size_t at) {
    from->at = at;
    from->used = from->held = 0;
}

static moert_status take_type(const char *path, unsigned code, moert_index *index) {
#define TOKEN_TYPE(name, number, bytes)                                                            \
    if (code == (number)) {                                                                        \
        index->type = #name;                                                                       \
        index->width = (bytes);                                                                    \
        return MOERT_OK;                                                                           \
    }
    MOERT_TOKEN_TABLE(TOKEN_TYPE)
#undef TOKEN_TYPE
    return MOERT_FAIL(ERROR_FORMAT,
                      "%s: token type %u is not supported; supported are uint8 (1), int32 (4), "
                      "int64 (5) and uint16 (8)",
                      path, code);
}

/* Reads the header and checks the size of the file. */
static moert_status read_header(const moert_corpus_file *file, moert_index *index) {
    unsigned char header[HEADER_BYTES];
    if (file->bytes < HEADER_BYTES)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: %zu bytes are too few for the index of a Megatron dataset",
                          file->path, file->bytes);
    MOERT_TRY(moert_corpus_read(file, 0, HEADER_BYTES, header));
    const uint64_t version = little(header + MAGIC_BYTES, 8), sequences = little(header + 18, 8),
                   entries = little(header + 26, 8), body = file->bytes - HEADER_BYTES;
    if (memcmp(header, magic, MAGIC_BYTES) != 0)
        return MOERT_FAIL(
            ERROR_FORMAT,
            "%s: does not begin with MMIDIDX, as the index of a Megatron dataset does", file->path);
    if (version != 1)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: format version %llu is not supported; only version 1 is", file->path,
                          (unsigned long long)version);
    MOERT_TRY(take_type(file->path, header[17], index));
    if (entries == 0)
        return MOERT_FAIL(
            ERROR_FORMAT,
            "%s: the list of documents is empty; its last entry must be the number of sequences",
            file->path);
    if (sequences > body / 12 || entries > body / 8 || sequences * 12 + entries * 8 != body)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: %zu bytes are no index of %llu sequences and %llu documents; is the "
                          "file complete?",
                          file->path, file->bytes, (unsigned long long)sequences,
                          (unsigned long long)entries - 1);
    index->sequences = (size_t)sequences;
    index->documents = (size_t)entries - 1;
    return MOERT_OK;
}

static moert_status read_lengths(reader *from, moert_index *index) {
    for (size_t i = 0; i < index->sequences; i++) {
        int64_t length = 0;
        MOERT_TRY(next(from, 4, &length));
        if (length < 0)
            return MOERT_FAIL(ERROR_FORMAT, "%s: sequence %zu has a negative length, %lld tokens",
                              from->file->path, i, (long long)length);
        index->starts[i + 1] = index->starts[i] + (size_t)length;
    }
    index->tokens = index->starts[index->sequences];
    return MOERT_OK;
}

/* Checks that every sequence lies within NAME.bin, the file of tokens. Frees index->positions if
 * the sequences lie one after another in NAME.bin. */
static moert_status read_positions(reader *from, const moert_corpus_file *binary,
                                   moert_index *index) {
    bool in_order = true;
    for (size_t i = 0; i < index->sequences; i++) {
        const size_t length = index->starts[i + 1] - index->starts[i];
        int64_t position = 0;
        MOERT_TRY(next(from, 8, &position));
        if (position < 0 || (uint64_t)position > binary->bytes ||
            length > (binary->bytes - (uint64_t)position) / index->width)
            return MOERT_FAIL(ERROR_FORMAT,
                              "%s: sequence %zu has %zu tokens from byte %lld on, but %s has %zu "
                              "bytes; do the files belong together?",
                              from->file->path, i, length, (long long)position, binary->path,
                              binary->bytes);
        index->positions[i] = (size_t)position;
        in_order &= index->positions[i] == index->starts[i] * index->width;
    }
    if (in_order) {
        free(index->positions);
        index->positions = NULL;
    }
    return MOERT_OK;
}

/* Checks the documents' first sequences, and frees index->first if every document is one
 * sequence. */
static moert_status read_documents(reader *from, moert_index *index) {
    bool single = index->documents == index->sequences;
    int64_t before = 0;
    for (size_t i = 0; i <= index->documents; i++) {
        int64_t first = 0;
        MOERT_TRY(next(from, 8, &first));
        if (first < before || (uint64_t)first > index->sequences)
            return MOERT_FAIL(
                ERROR_FORMAT, "%s: document %zu begins at sequence %lld; expected %lld to %zu",
                from->file->path, i, (long long)first, (long long)before, index->sequences);
        if ((i == 0 && first != 0) ||
            (i == index->documents && (uint64_t)first != index->sequences))
            return MOERT_FAIL(
                ERROR_FORMAT,
                "%s: the documents %s sequence %lld, but must cover all %zu sequences",
                from->file->path, i == 0 ? "begin at" : "end before", (long long)first,
                index->sequences);
        index->first[i] = (size_t)first;
        single &= index->first[i] == i;
        before = first;
    }
    if (single) {
        free(index->first);
        index->first = NULL;
    }
    return MOERT_OK;
}

/* Reads the lists, which follow each other in the file. The buffer is filled anew from each list's
 * first byte on, so that no number crosses the buffer's end. */
static moert_status read_lists(reader *from, const moert_corpus_file *binary, moert_index *index) {
    const size_t n = index->sequences;
    MOERT_TRY(MOERT_NEW_ARRAY(&index->starts, n + 1));
    seek(from, HEADER_BYTES);
    MOERT_TRY(read_lengths(from, index));
    MOERT_TRY(MOERT_NEW_ARRAY(&index->positions, n));
    seek(from, HEADER_BYTES + 4 * n);
    MOERT_TRY(read_positions(from, binary, index));
    MOERT_TRY(MOERT_NEW_ARRAY(&index->first, index->documents + 1));
    seek(from, HEADER_BYTES + 12 * n);
    return read_documents(from, index);
}

moert_status moert_index_read(const moert_corpus_file *file, const moert_corpus_file *binary,
                              moert_index *index) {
    reader *from;
    *index = (moert_index){0};
    MOERT_TRY(read_header(file, index));
    MOERT_TRY(MOERT_NEW(&from));
    from->file = file;
    const moert_status status = read_lists(from, binary, index);
    free(from);
    return status;
}

void moert_index_free(moert_index *index) {
    MOERT_FREE(index->starts, index->positions, index->first);
    *index = (moert_index){0};
}

size_t moert_index_document(const moert_index *index, size_t document) {
    return index->starts[index->first != NULL ? index->first[document] : document];
}
