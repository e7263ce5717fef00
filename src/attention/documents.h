/*
 * The documents of a batch: each of its sequences holds whole documents, one after the other.
 * Padding counts as a document. A position is a token's distance from the first token of its
 * document.
 *
 * Attention (moert_attention) processes each document by itself, in blocks that count from the
 * document's first token. Rotary embeddings (moert_rotation) use these positions. So a document's
 * results have the same bits as if it were alone in a sequence. Calls are not collective.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "moert/device.h"

typedef struct moert_documents moert_documents;

/* Creates an object that holds no tokens. Errors: ERROR_MEMORY. */
moert_status moert_documents_create(moert_device *device, moert_documents **documents);
void moert_documents_destroy(moert_documents *documents); /* NULL is legal */

/*
 * Replaces the documents by those of the next batch: positions[sequences,length] in host memory.
 * The call blocks. Kernels that were enqueued before still see the previous batch. Errors:
 * ERROR_USAGE (a position that neither is 0 nor follows the previous one of its sequence),
 * ERROR_MEMORY, ERROR_DEVICE.
 */
moert_status moert_documents_set(moert_documents *documents, size_t sequences, size_t length,
                                 const int32_t *positions);
/*
 * The same for a batch that continues `sequences` documents of `past` tokens each by `length`
 * tokens. k and v of attention have `room` rows for each sequence, past + length of them in use. So
 * a token's result has the same bits as in a batch of the whole documents.
 */
moert_status moert_documents_continue(moert_documents *documents, size_t sequences, size_t length,
                                      size_t past, size_t room);
/* The number of tokens, and their positions on the device: int32 [T]. */
size_t moert_documents_tokens(const moert_documents *documents);
const moert_buffer *moert_documents_positions(const moert_documents *documents);

/* ---- for the implementations of attention ---- */

/*
 * The documents in blocks of up to `own` positions (16, 32, 64 or 128), counted from each
 * document's start: *blocks holds *count structs moert_attention_block (kernels/args/attention.h)
 * in order of tokens. The buffer stays valid until the next moert_documents_set. Errors:
 * ERROR_MEMORY, ERROR_DEVICE.
 */
moert_status moert_documents_blocks(moert_documents *documents, size_t own,
                                    const moert_buffer **blocks, size_t *count);
/* Whether they are those of moert_documents_continue. */
bool moert_documents_continues(const moert_documents *documents);
/* The largest number of tokens of a document, earlier tokens included. */
size_t moert_documents_longest(const moert_documents *documents);
/* The number of pairs of a query and a key that it sees; window as in moert_attention, but not
 * 0. */
double moert_documents_pairs(const moert_documents *documents, size_t window);
/* The number of pairs of a query and a key that it sees in one document or sequence. */
double moert_attention_pairs(size_t length, size_t window);
