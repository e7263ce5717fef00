/*
 * A token source: access by position to tokens in files, and the documents that the tokens form.
 *
 *   text      all bytes of files and directories, in order, with one 0 byte between files; tokens
 *             are the bytes 0..255, and a document is a file
 *   raw       a file of 16 or 32 bit little-endian tokens, one document
 *   indexed   a Megatron dataset NAME.bin with NAME.idx (data/index.h)
 *
 * Tokens are read from the files when they are used, and checked against the vocabulary. It is an
 * error to read from a file that has changed since the source was opened. No call is collective.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/checksum.h"
#include "data/index.h"

typedef enum moert_source_kind {
    MOERT_SOURCE_TEXT,
    MOERT_SOURCE_RAW,
    MOERT_SOURCE_INDEXED
} moert_source_kind;

enum { MOERT_IDENTITY_BYTES = 160 };

/* Callers may read the fields, but must change fields only by the functions below. */
typedef struct moert_source {
    moert_source_kind kind;
    char *name;          /* the first path by which the source was opened */
    moert_corpus corpus; /* indexed: NAME.bin, then NAME.idx */
    const char *type;    /* name of the token type */
    unsigned width;      /* bytes of a token */
    size_t tokens;       /* tokens in all documents; for text, with the 0 bytes between files */
    size_t documents;
    size_t *starts;    /* text: position of each file's first byte */
    bool masked;       /* indexed: NAME.mask.bin, the third file, tells which targets are masked */
    moert_index index; /* indexed */
    /* indexed: the tokenizer's values in NAME.dataset.json, which launch/tokenize writes */
    size_t vocabulary_made; /* 0: unknown */
    int32_t end_made;       /* the token that ends each document; -1: none or unknown */
    uint64_t vocabulary;    /* tokens must be below this number */
    moert_checksum *sums;   /* checksum of each file of the corpus */
    /* Identifies the data by the content alone, not by paths: "text of 11357 tokens in 1 file, XXH3
     * 4f0c...". Data of more than 256 MiB is identified by the sizes of its files and by 64 blocks
     * of 4 KiB of each. */
    char identity[MOERT_IDENTITY_BYTES];
} moert_source;

/* Opens text from `count` files or directories (walked in byte order of names; links skipped).
 * Errors: ERROR_IO (a named file is special, or any file is missing or unreadable), ERROR_FORMAT
 * (all files are empty), ERROR_MEMORY. */
moert_status moert_source_open_text(const char *const *paths, size_t count, moert_source **source);

/* Opens one file of tokens of `bits` (16 or 32) each. Errors: ERROR_USAGE, ERROR_IO, ERROR_MEMORY,
 * ERROR_FORMAT (the file is empty or its size is not a multiple of a token's size). */
moert_status moert_source_open_raw(const char *path, unsigned bits, moert_source **source);

/*
 * Opens the source that `paths` name: one Megatron dataset (NAME, NAME.bin or NAME.idx, where both
 * files exist), one raw file NAME.bin (without NAME.idx) of tokens of `bits`, or otherwise text.
 * If a dataset has the file NAME.mask.bin, this file has one byte for each token of NAME.bin: 1 if
 * the token counts as a target, 0 if it is masked as a target. NAME.dataset.json, if it exists,
 * gives the tokenizer's vocabulary and end token. Errors: those of moert_source_open_text,
 * moert_source_open_raw, moert_index_read and moert_json_read, ERROR_FORMAT (a dataset without
 * tokens, an illegal value in NAME.dataset.json), ERROR_USAGE (more than one path, and not all are
 * text).
 */
moert_status moert_source_open(const char *const *paths, size_t count, unsigned bits,
                               moert_source **source);

/* NULL is legal. */
void moert_source_close(moert_source *source);

/* Reads tokens[count] from `position` on. Errors: ERROR_IO, ERROR_MISMATCH (a token is not below
 * the vocabulary; the message names file, position and token). */
moert_status moert_source_read(const moert_source *source, size_t position, size_t count,
                               int32_t *tokens);

/* counts[i] = 1 if token position + i of a masked source counts as a target, and 0 if it is masked
 * as a target. Errors: ERROR_IO, ERROR_FORMAT (the mask has a value other than 0 and 1). */
moert_status moert_source_read_mask(const moert_source *source, size_t position, size_t count,
                                    unsigned char *counts);

/* target[i] becomes -1 where token position + 1 + i of a masked source is masked as a target.
 * Errors: those of moert_source_read_mask. */
moert_status moert_source_mask_targets(const moert_source *source, size_t position, size_t length,
                                       int32_t *target);

/* Position of the first token of a document, or the end of the source if `document` is the number
 * of documents. In text, the 0 byte after a file lies before the start of the next document. */
size_t moert_source_start(const moert_source *source, size_t document);
/* The last document that starts at `position` or before it. */
size_t moert_source_document(const moert_source *source, size_t position);
/* The number of tokens of a document, without the 0 byte that follows a document of text. */
size_t moert_source_length(const moert_source *source, size_t document);

/* From now on tokens must be below `vocabulary`. Also reads and checks all tokens now, unless the
 * files have more than 256 MiB, or the source is text and `vocabulary` is at least 256. Errors:
 * those of moert_source_read. */
moert_status moert_source_limit(moert_source *source, size_t vocabulary);

/* Computes the checksums and the identity of a source. The functions that open a source call
 * moert_source_identify. Errors: ERROR_IO, ERROR_MEMORY. */
moert_status moert_source_identify(moert_source *source);

/* Sum of the sizes of the source's files. */
size_t moert_source_bytes(const moert_source *source);
/* If a source's files have at most this number of bytes together, opening the source reads them
 * whole. */
enum { MOERT_SOURCE_WHOLE_BYTES = 256 << 20 };
