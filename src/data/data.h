/*
 * The sequences of a training. The sequences come from a token source (data/source.h), from a blend
 * of several sources (data/blend.h), or batch by batch from an array tokens[steps,batch,length +
 * 1].
 *
 * A source is one long row of tokens; its held-out and test parts are not used for training
 * (data/split.h). A training sequence is a row of an epoch (data/epochs.h), or starts at a random
 * position of the training data. moert_draw alone determines the training sequence, so any rank can
 * read any sequence. For a sequence of `length` tokens, length + 1 are read: target[i] = input[i +
 * 1]. All ranks must open the same data, which moert_data_compare checks; no other call is
 * collective.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "data/source.h"
#include "data/split.h"

typedef struct moert_data moert_data;

/* Takes ownership of `source`, also after an error. Errors: ERROR_MEMORY. */
moert_status moert_data_from_source(moert_source *source, const moert_split *split,
                                    moert_data **data);

/*
 * Creates a blend of `count` parts, which are not blends themselves. For any n, the number of
 * sequences of part i among the first n, in the order of (step, index), differs by less than 1 from
 * n times the fraction of weights[i] in the sum of the weights. All parts must have the same split.
 * Takes ownership of the parts, also after an error. Errors: those of moert_blend_create.
 */
moert_status moert_data_from_blend(moert_data *const *parts, const uint64_t *weights, size_t count,
                                   moert_data **data);

/* Arrays to replay, which must outlive the data. */
typedef struct moert_replay {
    const char *name;         /* in error messages */
    size_t steps, batch, row; /* row = length + 1 */
    const int32_t *tokens;    /* [steps,batch,row] */
    const int32_t
        *targets; /* [steps,batch,length], negative targets are masked; NULL: the targets are the
                     next tokens */
} moert_replay;
moert_status moert_data_from_array(const moert_replay *replay, moert_data **data);

/*
 * From now on training sequences, of `length` tokens, come in epochs (data/epochs.h), in an order
 * that `seed` selects. In a blend each part has epochs of its own. Errors: those of
 * moert_data_check_length, ERROR_USAGE (an array), ERROR_MEMORY.
 */
moert_status moert_data_order_epochs(moert_data *data, uint64_t seed, size_t length);

/*
 * From now on a token equal to `end` also ends a document, as the document's last token; -1: no
 * token ends documents. With `in_streams`, `end` applies only to raw token files, whose documents
 * are otherwise unknown.
 */
void moert_data_end_documents(moert_data *data, int32_t end, bool in_streams);

/* NULL is legal. */
void moert_data_destroy(moert_data *data);

typedef struct moert_data_info {
    const char *identity;        /* moert_source.identity; lives as long as the data */
    size_t files, tokens;        /* numbers of files and of tokens, held-out and test tokens
                                    included */
    size_t steps, batch, length; /* shape of an array; 0 for a source */
    bool documents;              /* a source of tokenized documents */
    bool divided;                /* sequences may hold several documents */
    int32_t end;                 /* token that moert_data_end_documents has set for the data, or for
                                    any part of a blend; -1: none */
    size_t rows;                 /* sequences of an epoch, in a blend summed over its parts; 0: no
                                    epochs */
    const char *name;            /* moert_source.name; NULL for an array and a blend */
    bool text;                   /* some tokens are bytes of text */
    size_t vocabulary_made;      /* moert_source.vocabulary_made; for a blend, the largest of its
                                    parts */
    int32_t end_made;            /* moert_source.end_made; for a blend, the token of any part that
                                    has one */
    size_t parts;                /* number of parts of a blend, else 0 */
    moert_split split;           /* division of the source, or of each source of a blend */
} moert_data_info;
moert_data_info moert_data_describe(const moert_data *data);

/* moert_data_part returns a part of a blend. moert_data_part_count returns how many of the first
 * `sequences` sequences of a training come from that part. */
const moert_data *moert_data_part(const moert_data *data, size_t part);
uint64_t moert_data_part_count(const moert_data *data, size_t part, uint64_t sequences);

/* ERROR_MISMATCH on all ranks if a rank has other files, sizes or content than rank 0; the message
 * names the rank and the first file that differs. Collective. */
moert_status moert_data_compare(const moert_data *data, moert_comm *comm);

/* ERROR_MISMATCH if there is too little data for sequences of `length`, or if the array has another
 * length; ERROR_USAGE for a length of 0. */
moert_status moert_data_check_length(const moert_data *data, size_t length);

/* ERROR_MISMATCH if a token is not below `vocabulary`; the message names file, position and token.
 * Tokens of sources that this call does not read (moert_source_limit) are checked when they are
 * used. */
moert_status moert_data_check_vocabulary(moert_data *data, size_t vocabulary);

/* Identifies a training sequence. `index` counts the sequences of a step over all ranks and
 * micro-batches. */
typedef struct moert_draw {
    uint64_t seed, step;
    size_t index;
    uint64_t before; /* sequences of all earlier steps; used only for epochs and blends */
} moert_draw;

/*
 * Reads input[length] and target[length] of a training sequence. A target of -1 is masked, and an
 * input of -1 is padding. positions[length] = the tokens' distances from the first token of their
 * document in the sequence. The last token of a document has no target. If moert_data_info.divided
 * is false, a sequence is one document, and positions may be NULL. Errors: those of
 * moert_data_check_length and moert_source_read; ERROR_USAGE (past the last step or the batch of an
 * array).
 */
moert_status moert_data_sequence(const moert_data *data, moert_draw draw, size_t length,
                                 int32_t *input, int32_t *target, int32_t *positions);

/* Whether the split has data for `use`, such as held-out data. An array is training data only. */
bool moert_data_has(const moert_data *data, moert_use use);

/* Identifies a held-out or test sequence: sequence `index` of `count` sequences at evenly spaced
 * positions of the data for this use. */
typedef struct moert_kept_draw {
    moert_use use;
    size_t index, count;
} moert_kept_draw;

/*
 * Reads a held-out or test sequence of a source. For a blend, call this function for each part.
 * Sequences overlap if the data for this use are shorter than `count` sequences. positions[length]
 * have the meaning as in moert_data_sequence. Errors: those of moert_data_check_length and
 * moert_source_read; ERROR_USAGE (no data for this use, index >= count).
 */
moert_status moert_data_kept_sequence(const moert_data *data, moert_kept_draw draw, size_t length,
                                      int32_t *input, int32_t *target, int32_t *positions);
