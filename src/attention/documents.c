/* Documents: checks their positions, and lists their blocks for the kernels of attention. */
#include "attention/documents.h"

#include <stdlib.h>

#include "args/attention.h"
#include "base/memory.h"
#include "device/buffer.h"

enum { LEAST_OWN = 16, OWN_SIZES = 4, SLOT = 64 };

typedef struct document {
    size_t token, length; /* index in the batch of the first of its tokens; their number */
    size_t past;          /* earlier tokens, whose keys are in a cache */
    size_t keys;          /* the row of k and v of the document's first token */
} document;

/* The blocks of one size; `count` is 0 until the list is made. */
typedef struct block_list {
    moert_buffer *blocks;
    size_t count;
} block_list;

struct moert_documents {
    moert_device *device;
    size_t tokens, count;
    bool continues;
    document *document; /* [count] */
    moert_buffer *positions;
    block_list list[OWN_SIZES]; /* lists of blocks of LEAST_OWN, 2 LEAST_OWN, ... positions */
};

moert_status moert_documents_create(moert_device *device, moert_documents **documents) {
    moert_documents *made;
    MOERT_TRY(MOERT_NEW(&made));
    made->device = device;
    *documents = made;
    return MOERT_OK;
}

void moert_documents_destroy(moert_documents *documents) {
    if (documents == NULL)
        return;
    for (size_t i = 0; i < OWN_SIZES; i++)
        moert_buffer_destroy(documents->list[i].blocks);
    moert_buffer_destroy(documents->positions);
    MOERT_FREE(documents->document, documents);
}

/* Checks the positions, and sets *count to the number of documents. */
static moert_status check(size_t sequences, size_t length, const int32_t *positions,
                          size_t *count) {
    *count = 0;
    for (size_t t = 0; t < sequences * length; t++) {
        const int32_t next = t % length > 0 ? positions[t - 1] + 1 : 0;
        if (positions[t] != 0 && positions[t] != next)
            return MOERT_FAIL(ERROR_USAGE,
                              "sequence %zu: token %zu has position %d in its document, not 0 or "
                              "%d; positions count from each document's first token",
                              t / length, t % length, positions[t], next);
        *count += positions[t] == 0;
    }
    return MOERT_OK;
}

static moert_status write_positions(moert_documents *documents, const int32_t *positions,
                                    size_t tokens) {
    const size_t bytes = tokens * sizeof *positions;
    MOERT_TRY(moert_buffer_reserve(documents->device, bytes, &documents->positions));
    return moert_buffer_write(documents->positions, 0, positions, bytes);
}

/* Takes the documents of a new batch; their lists of blocks are made later. */
static void replace(moert_documents *documents, document *made, size_t count, size_t tokens,
                    bool continues) {
    free(documents->document);
    documents->continues = continues;
    documents->document = made;
    documents->count = count;
    documents->tokens = tokens;
    for (size_t i = 0; i < OWN_SIZES; i++)
        documents->list[i].count = 0;
}

moert_status moert_documents_set(moert_documents *documents, size_t sequences, size_t length,
                                 const int32_t *positions) {
    const size_t tokens = sequences * length;
    size_t count;
    document *made;
    MOERT_TRY(check(sequences, length, positions, &count));
    MOERT_TRY(write_positions(documents, positions, tokens));
    MOERT_TRY(MOERT_NEW_ARRAY(&made, count));
    for (size_t t = 0, begun = 0; t < tokens; t++) {
        if (positions[t] == 0)
            made[begun++] = (document){.token = t, .keys = t};
        made[begun - 1].length++;
    }
    replace(documents, made, count, tokens, false);
    return MOERT_OK;
}

moert_status moert_documents_continue(moert_documents *documents, size_t sequences, size_t length,
                                      size_t past, size_t room) {
    const size_t tokens = sequences * length;
    document *made = NULL;
    int32_t *positions = NULL;
    moert_status status;
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&positions, tokens));
    MOERT_TRY_OR(done, MOERT_NEW_ARRAY(&made, sequences));
    for (size_t t = 0; t < tokens; t++)
        positions[t] = (int32_t)(past + t % length);
    for (size_t s = 0; s < sequences; s++)
        made[s] = (document){s * length, length, past, s * room};
    MOERT_TRY_OR(done, write_positions(documents, positions, tokens));
    replace(documents, made, sequences, tokens, true);
    made = NULL;
done:
    MOERT_FREE(positions, made);
    return status;
}

size_t moert_documents_tokens(const moert_documents *documents) {
    return documents->tokens;
}

const moert_buffer *moert_documents_positions(const moert_documents *documents) {
    return documents->positions;
}

/* Lists the blocks of `own` positions in block[]. */
static void fill(const moert_documents *documents, size_t own, moert_attention_block *block) {
    size_t slot = 0;
    for (size_t i = 0; i < documents->count; i++) {
        const document *d = &documents->document[i];
        for (size_t first = 0; first < d->length; first += own)
            *block++ = (moert_attention_block){.token = d->token - d->past,
                                               .keys = d->keys,
                                               .length = (int)(d->past + d->length),
                                               .first = (int)(d->past + first),
                                               .slot = (int)slot};
        slot += moert_ceil_div(d->length, SLOT);
    }
}

static moert_status make(const moert_documents *documents, size_t own, block_list *list) {
    moert_attention_block *block;
    size_t count = 0;
    for (size_t i = 0; i < documents->count; i++)
        count += moert_ceil_div(documents->document[i].length, own);
    MOERT_TRY(moert_buffer_reserve(documents->device, count * sizeof *block, &list->blocks));
    MOERT_TRY(MOERT_NEW_ARRAY(&block, count));
    fill(documents, own, block);
    const moert_status status = moert_buffer_write(list->blocks, 0, block, count * sizeof *block);
    free(block);
    MOERT_TRY(status);
    list->count = count;
    return MOERT_OK;
}

moert_status moert_documents_blocks(moert_documents *documents, size_t own,
                                    const moert_buffer **blocks, size_t *count) {
    block_list *list = documents->list;
    for (size_t size = LEAST_OWN; size < own; size *= 2)
        list++;
    if (list->count == 0)
        MOERT_TRY(make(documents, own, list));
    *blocks = list->blocks;
    *count = list->count;
    return MOERT_OK;
}

double moert_attention_pairs(size_t length, size_t window) {
    const double all = (double)length, hidden = length > window ? (double)(length - window) : 0.0;
    return (all * (all + 1.0) - hidden * (hidden + 1.0)) / 2.0;
}

double moert_documents_pairs(const moert_documents *documents, size_t window) {
    double pairs = 0.0;
    for (size_t i = 0; i < documents->count; i++) {
        const document *d = &documents->document[i];
        pairs += moert_attention_pairs(d->past + d->length, window) -
                 moert_attention_pairs(d->past, window);
    }
    return pairs;
}

bool moert_documents_continues(const moert_documents *documents) {
    return documents->continues;
}

size_t moert_documents_longest(const moert_documents *documents) {
    size_t most = 0;
    for (size_t i = 0; i < documents->count; i++)
        most = moert_max(most, documents->document[i].past + documents->document[i].length);
    return most;
}
