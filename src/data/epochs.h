/*
 * The order of training by epochs. Each epoch visits every training token once.
 *
 * The documents, in a random permutation, form one long row, which is cut into rows of `length`
 * tokens. A document of a masked source that fits into a row is not cut: if it does not fit into
 * the rest of the current row, it starts the next row (next-fit). Each epoch permutes the rows
 * anew. With N rows, sequence n of a training is row n mod N of epoch n / N, so a resume needs no
 * state.
 *
 * Every token is an input once in an epoch, and its target is the next token of its document. The
 * last token of a document, and a token before held-out tokens, have no target. The rest of a row
 * is padding. Memory: 16 bytes for every 16 rows.
 */
#pragma once

#include "data/source.h"

typedef struct moert_epochs moert_epochs;

/* Positions begin to end - 1 of a source. */
typedef struct moert_range {
    size_t begin, end;
} moert_range;

typedef struct moert_epochs_options {
    const moert_source *source; /* must outlive the epochs */
    uint64_t seed;
    size_t length; /* of a sequence */
} moert_epochs_options;

enum { MOERT_EPOCH_RANGES = 17 };

/* Uses the tokens of up to MOERT_EPOCH_RANGES ranges, in order, which together are not empty.
 * Errors: ERROR_MEMORY, ERROR_FORMAT (there is no token in the ranges). */
moert_status moert_epochs_create(const moert_epochs_options *options, const moert_range *ranges,
                                 size_t count, moert_epochs **epochs);
/* NULL is legal. */
void moert_epochs_destroy(moert_epochs *epochs);

/* Rows of an epoch. */
size_t moert_epochs_rows(const moert_epochs *epochs);

/* Reads sequence `number` of a training (moert_data_sequence). Errors: those of
 * moert_source_read. */
moert_status moert_epochs_read(const moert_epochs *epochs, uint64_t number, int32_t *input,
                               int32_t *target, int32_t *positions);
