/* Digests of rows: launches kernels/nn/digest.cl. */
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

enum { ROW_FLOATS = 1024 }; /* floats of one digest when a buffer has no rows */

/* *hash = the hash of its old value and of the digests of `rows` rows. */
static moert_status hash_digests(const moert_buffer *digests, size_t rows, uint64_t *hash) {
    uint64_t *digest;
    MOERT_TRY(moert_alloc(&digest, rows + 1, sizeof *digest));
    digest[0] = *hash;
    const moert_status status = moert_buffer_read(digests, 0, digest + 1, rows * sizeof *digest);
    const moert_checksum sum = moert_checksum_of(digest, (rows + 1) * sizeof *digest);
    memcpy(hash, sum.byte, sizeof *hash);
    free(digest);
    return status;
}

moert_status moert_digest_floats(const moert_buffer *x, size_t at, size_t floats,
                                 moert_buffer **scratch, uint64_t *hash) {
    const size_t rows = floats / ROW_FLOATS, rest = floats % ROW_FLOATS, all = rows + (rest > 0);
    if (floats == 0)
        return MOERT_OK;
    MOERT_TRY(moert_buffer_reserve(moert_buffer_device(x), all * sizeof *hash, scratch));
    moert_digest run = {.rows = rows,
                        .bytes = ROW_FLOATS * sizeof(float),
                        .x = x,
                        .stride = ROW_FLOATS,
                        .at = at,
                        .digest = *scratch};
    MOERT_TRY(moert_digest_rows(&run));
    run.first = rows;
    run.rows = rest > 0;
    run.bytes = rest * sizeof(float);
    run.at = at + rows * ROW_FLOATS;
    MOERT_TRY(moert_digest_rows(&run));
    return hash_digests(*scratch, all, hash);
}
