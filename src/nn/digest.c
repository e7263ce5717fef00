/* Digests of rows: launches kernels/nn/digest.cl. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "args/nn.h"
#include "base/checksum.h"
#include "base/memory.h"
#include "device/buffer.h"
#include "device/launch.h"
#include "device/profile/profile.h"
#include "nn/nn.h"

moert_status moert_digest_rows(const moert_digest *digest) {
    const size_t words = moert_ceil_div(digest->bytes, sizeof(uint32_t)),
                 rest = digest->bytes % sizeof(uint32_t);
    moert_device *device = moert_buffer_device(digest->digest);
    int count;
    if (digest->rows == 0)
        return MOERT_OK;
    MOERT_TRY(moert_to_int(words, "words in a row of a digest", &count));
    moert_profile_work(device, "nn/digest", 0.0, (double)digest->rows * (double)digest->bytes);
    return MOERT_RUN(
        device, MOERT_PROGRAM(device, "nn/digest", words | digest->stride | digest->at),
        "digest_rows", ((moert_grid){digest->rows, 1, 1}), MOERT_ARG(digest->x),
        MOERT_ARG(digest->digest),
        MOERT_ARGS(moert_digest_args, .at = digest->at, .stride = digest->stride,
                   .first = digest->first, .words = count,
                   .mask = rest > 0 ? (uint32_t)((1ull << 8 * rest) - 1) : UINT32_MAX));
}

moert_status moert_digest_spans(const moert_span_digest *digest) {
    const size_t sizes = digest->sizes | digest->x.at;
    moert_device *device = moert_buffer_device(digest->digest);
    char program[64];
    if (digest->rows == 0)
        return MOERT_OK;
    snprintf(program, sizeof program, "%s%s", MOERT_PROGRAM(device, "nn/digest", sizes),
             digest->x.type == MOERT_DTYPE_BF16 ? " -DBF16" : "");
    return MOERT_RUN(device, program, "digest_spans", ((moert_grid){digest->rows, 1, 1}),
                     MOERT_ARG(digest->x.buffer), MOERT_ARG(digest->table),
                     MOERT_ARG(digest->digest),
                     MOERT_ARGS(moert_digest_spans_args, .at = digest->x.at,
                                .first_row = digest->first_row, .first = digest->first));
}

enum { ROW_FLOATS = 1024 }; /* digest_buffer makes one digest of this many floats */

static size_t count_rows(size_t floats) {
    return moert_ceil_div(floats, ROW_FLOATS);
}

/* digest[first ...] = the digests of floats of a buffer. */
static moert_status digest_buffer(const moert_buffer *x, size_t at, size_t floats,
                                  moert_buffer *digest, size_t first) {
    const size_t rows = floats / ROW_FLOATS, rest = floats % ROW_FLOATS;
    moert_digest run = {.rows = rows,
                        .bytes = ROW_FLOATS * sizeof(float),
                        .x = x,
                        .stride = ROW_FLOATS,
                        .at = at,
                        .digest = digest,
                        .first = first};
    MOERT_TRY(moert_digest_rows(&run));
    run.first += rows;
    run.rows = rest > 0;
    run.bytes = rest * sizeof(float);
    run.at += rows * ROW_FLOATS;
    return moert_digest_rows(&run);
}

/* ---- queues ---- */

enum { LEAST_ROWS = 16384 }; /* the queue has room for at least this many digests */

moert_status moert_digest_add(moert_digest_queue *queue, const moert_buffer *x, size_t at,
                              size_t floats, uint64_t *hash) {
    const size_t rows = count_rows(floats);
    if (floats == 0)
        return MOERT_OK;
    if (queue->digests != NULL &&
        (queue->rows + rows) * sizeof *hash > moert_buffer_bytes(queue->digests))
        MOERT_TRY(moert_digest_flush(queue));
    MOERT_TRY(moert_buffer_reserve(moert_buffer_device(x),
                                   moert_max(rows, LEAST_ROWS) * sizeof *hash, &queue->digests));
    MOERT_TRY(MOERT_GROW(&queue->entry, &queue->room, queue->count + 1));
    MOERT_TRY(digest_buffer(x, at, floats, queue->digests, queue->rows));
    queue->entry[queue->count++] = (struct moert_digest_entry){hash, rows};
    queue->rows += rows;
    return MOERT_OK;
}

moert_status moert_digest_flush(moert_digest_queue *queue) {
    uint64_t *all, *digest;
    if (queue->count == 0)
        return MOERT_OK;
    MOERT_TRY(moert_alloc(&all, queue->rows + 1, sizeof *all));
    digest = all; /* room for the previous hash precedes the digests of an entry */
    const moert_status status =
        moert_buffer_read(queue->digests, 0, all + 1, queue->rows * sizeof *all);
    for (size_t i = 0; i < queue->count && status == MOERT_OK; i++) {
        const struct moert_digest_entry *e = &queue->entry[i];
        *digest = *e->hash;
        memcpy(e->hash, moert_checksum_of(digest, (e->rows + 1) * sizeof *digest).byte,
               sizeof *e->hash);
        digest += e->rows;
    }
    free(all);
    queue->count = queue->rows = 0;
    return status;
}

void moert_digest_free(moert_digest_queue *queue) {
    moert_buffer_destroy(queue->digests);
    free(queue->entry);
}

moert_status moert_digest_floats(const moert_buffer *x, size_t at, size_t floats,
                                 moert_buffer **scratch, uint64_t *hash) {
    struct moert_digest_entry entry = {hash, count_rows(floats)};
    if (floats == 0)
        return MOERT_OK;
    MOERT_TRY(moert_buffer_reserve(moert_buffer_device(x), entry.rows * sizeof *hash, scratch));
    MOERT_TRY(digest_buffer(x, at, floats, *scratch, 0));
    moert_digest_queue one = {*scratch, &entry, 1, 1, entry.rows};
    return moert_digest_flush(&one);
}
