/* Cuts the documents, in random order, into rows, and reads these rows in another random order. */
#include "data/epochs.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"

enum { STRIDE = 16 }; /* the index has an entry for every STRIDE-th row */

/* A position in the permuted parts: `offset` tokens into part `part`. */
typedef struct cursor {
    size_t part, offset;
} cursor;

/* The documents with tokens in a range. A part is the tokens that one document has in one range. */
typedef struct region {
    moert_range range;
    size_t document; /* the first one */
    size_t first;    /* number of the region's first part */
} region;

struct moert_epochs {
    moert_epochs_options options;
    region regions[MOERT_EPOCH_RANGES];
    size_t count, parts, rows;
    cursor *index; /* where every STRIDE-th row begins */
};

static void add_region(moert_epochs *e, moert_range range) {
    if (range.begin >= range.end)
        return;
    const size_t first = moert_source_document(e->options.source, range.begin);
    e->regions[e->count++] = (region){range, first, e->parts};
    e->parts += moert_source_document(e->options.source, range.end - 1) + 1 - first;
}

/* Returns the tokens of part `number` of an epoch's permutation; the range may be empty. */
static moert_range part_at(const moert_epochs *e, size_t number) {
    const moert_source *source = e->options.source;
    const size_t part =
        moert_rng_permute(e->options.seed, moert_rng_stream("documents"), e->parts, number);
    size_t r = e->count - 1;
    while (e->regions[r].first > part)
        r--;
    const region *in = &e->regions[r];
    const size_t document = in->document + (part - in->first),
                 start = moert_source_start(source, document),
                 end = moert_min(start + moert_source_length(source, document), in->range.end),
                 begin = moert_max(start, in->range.begin);
    return (moert_range){begin, moert_max(begin, end)};
}

/* A walk over the parts. */
typedef struct walk {
    cursor at;
    moert_range part; /* tokens of part at.part; empty after the last part */
} walk;

static walk walk_from(const moert_epochs *e, cursor at) {
    return (walk){at, at.part < e->parts ? part_at(e, at.part) : (moert_range){0, 0}};
}

/* Tokens of one part in a row. */
typedef struct piece {
    size_t position, tokens;
    bool last; /* of its part */
} piece;

/* Takes the next piece of a row whose earlier pieces have `used` tokens; false if the row has no
 * further piece. */
static bool next_piece(const moert_epochs *e, walk *w, size_t used, piece *next) {
    const size_t length = e->options.length, room = length - used;
    for (; w->at.part < e->parts && room > 0; *w = walk_from(e, (cursor){w->at.part + 1, 0})) {
        const size_t tokens = w->part.end - w->part.begin, left = tokens - w->at.offset;
        if (left == 0)
            continue;
        if (e->options.source->masked && tokens > room && tokens <= length)
            return false;
        *next = (piece){w->part.begin + w->at.offset, moert_min(left, room), left <= room};
        w->at.offset += next->tokens;
        return true;
    }
    return false;
}

/* Skips a row; returns its number of tokens. */
static size_t skip_row(const moert_epochs *e, walk *w) {
    size_t used = 0;
    for (piece next; next_piece(e, w, used, &next);)
        used += next.tokens;
    return used;
}

static moert_status make_index(moert_epochs *e) {
    size_t tokens = 0;
    for (size_t i = 0; i < e->count; i++)
        tokens += e->regions[i].range.end - e->regions[i].range.begin;
    /* A row and the first piece of the next row together exceed `length` tokens. */
    const size_t most = 2 * (tokens / e->options.length) + 2;
    MOERT_TRY(MOERT_NEW_ARRAY(&e->index, most / STRIDE + 1));
    walk w = walk_from(e, (cursor){0, 0});
    for (cursor begin = w.at; skip_row(e, &w) > 0; begin = w.at) {
        if (e->rows % STRIDE == 0)
            e->index[e->rows / STRIDE] = begin;
        e->rows++;
    }
    return e->rows > 0
               ? MOERT_OK
               : MOERT_FAIL(ERROR_FORMAT,
                            "all tokens of all documents are held out; none is left for training");
}

moert_status moert_epochs_create(const moert_epochs_options *options, const moert_range *ranges,
                                 size_t count, moert_epochs **epochs) {
    moert_epochs *made;
    MOERT_TRY(MOERT_NEW(&made));
    made->options = *options;
    for (size_t i = 0; i < count; i++)
        add_region(made, ranges[i]);
    const moert_status status = make_index(made);
    if (status == MOERT_OK)
        *epochs = made;
    else
        moert_epochs_destroy(made);
    return status;
}

void moert_epochs_destroy(moert_epochs *epochs) {
    if (epochs == NULL)
        return;
    MOERT_FREE(epochs->index, epochs);
}

size_t moert_epochs_rows(const moert_epochs *epochs) {
    return epochs->rows;
}

/* input[i] and target[i] = tokens i and i + 1 from the piece's start on. The last token of a part
 * has the target -1. */
static moert_status read_piece(const moert_epochs *e, const piece *from, int32_t *input,
                               int32_t *target) {
    const moert_source *source = e->options.source;
    const size_t targets = from->tokens - from->last;
    MOERT_TRY(moert_source_read(source, from->position, from->tokens, input));
    memcpy(target, input + 1, (from->tokens - 1) * sizeof *target);
    target[from->tokens - 1] = -1;
    if (!from->last)
        MOERT_TRY(
            moert_source_read(source, from->position + targets, 1, target + from->tokens - 1));
    return source->masked ? moert_source_mask_targets(source, from->position, targets, target)
                          : MOERT_OK;
}

/* Makes inputs and targets padding, whose positions count from 0. */
static void clear(size_t length, int32_t *input, int32_t *target, int32_t *positions) {
    for (size_t i = 0; i < length; i++) {
        input[i] = target[i] = -1;
        if (positions != NULL)
            positions[i] = (int32_t)i;
    }
}

moert_status moert_epochs_read(const moert_epochs *epochs, uint64_t number, int32_t *input,
                               int32_t *target, int32_t *positions) {
    const moert_epochs_options *o = &epochs->options;
    const uint64_t epoch = number / epochs->rows;
    const size_t row = moert_rng_permute(o->seed, moert_rng_stream("rows") + epoch, epochs->rows,
                                         number % epochs->rows);
    walk w = walk_from(epochs, epochs->index[row / STRIDE]);
    for (size_t i = 0; i < row % STRIDE; i++)
        skip_row(epochs, &w);
    size_t used = 0;
    for (piece next; next_piece(epochs, &w, used, &next); used += next.tokens) {
        MOERT_TRY(read_piece(epochs, &next, input + used, target + used));
        for (size_t i = 0; positions != NULL && i < next.tokens; i++)
            positions[used + i] = (int32_t)i;
    }
    clear(o->length - used, input + used, target + used,
          positions != NULL ? positions + used : NULL);
    return MOERT_OK;
}
