/*
 * The index of a Megatron dataset: which tokens of NAME.bin form which sequences and documents.
 *
 *   NAME.idx   "MMIDIDX\0\0", version 1 as uint64, token type as uint8, sequences N and entries
 *              D + 1 as uint64, lengths int32 [N] in tokens, positions int64 [N] in bytes of
 *              NAME.bin, first sequences of the documents int64 [D + 1], the last of which is N
 *
 * All numbers are little-endian. Source: megatron-core 0.16, core/datasets/indexed_dataset.py.
 */
#pragma once

#include "data/corpus.h"

/* X(NAME, code in the file, bytes of a token) */
#define MOERT_TOKEN_TABLE(X)                                                                       \
    X(uint8, 1, 1)                                                                                 \
    X(int32, 4, 4)                                                                                 \
    X(int64, 5, 8)                                                                                 \
    X(uint16, 8, 2)

typedef struct moert_index {
    const char *type; /* name of the token type */
    unsigned width;   /* bytes of a token */
    size_t sequences, documents, tokens;
    size_t *starts;    /* [sequences + 1] tokens before each sequence */
    size_t *positions; /* [sequences] bytes of NAME.bin before each sequence; NULL if the sequences
                          lie one after another in NAME.bin from byte 0 on */
    size_t *first;     /* [documents + 1] first sequence of each document; NULL if every document is
                          one sequence */
} moert_index;

/* Reads the index `file` of the tokens `binary`. The caller calls moert_index_free, also after an
 * error. Errors: ERROR_IO, ERROR_MEMORY, ERROR_FORMAT (not an index of this format, or an index
 * that contradicts the file of tokens; the message names the file and the sequence or document). */
moert_status moert_index_read(const moert_corpus_file *file, const moert_corpus_file *binary,
                              moert_index *index);
void moert_index_free(moert_index *index);

/* Tokens before document `document`, 0 to `documents`. */
size_t moert_index_document(const moert_index *index, size_t document);
