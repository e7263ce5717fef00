/* Computes and compares checksums with all ranks. */
#include "train/verify.h"

#include <stdlib.h>

#include "base/memory.h"
#include "base/phase.h"
#include "io/manifest.h"
#include "model/model.h"

/* all[pieces] = the checksums that every rank computes for its range of the pieces. */
static moert_status sum_range(moert_comm *world, const moert_manifest *manifest,
                              moert_checksum *all, size_t *bytes) {
    const size_t ranks = moert_comm_size(world), pieces = moert_manifest_pieces(manifest);
    size_t first = 0, count = 0;
    for (size_t r = 0; r < ranks; r++) {
        moert_model_partition(pieces, r, ranks, &first, &count);
        bytes[r] = count * sizeof *all;
    }
    moert_model_partition(pieces, moert_comm_rank(world), ranks, &first, &count);
    MOERT_TRY(moert_comm_agree(world, moert_manifest_sum(manifest, first, count, all + first)));
    return moert_comm_allgatherv(world, all + first, bytes, all);
}

/* Compares the number of pieces before they are gathered. Without a manifest the number is 0. */
static moert_status check_pieces(moert_comm *world, const char *directory, size_t pieces) {
    uint64_t smallest = pieces;
    MOERT_TRY(moert_comm_smallest(world, &smallest));
    return moert_comm_agree(
        world, smallest == pieces
                   ? MOERT_OK
                   : MOERT_FAIL(ERROR_MISMATCH,
                                "%s: this rank sees %zu pieces of 1 MiB, another one %zu (do all "
                                "hosts see the same file system?)",
                                directory, pieces, (size_t)smallest));
}

static moert_status sum_all(moert_comm *world, const char *directory,
                            const moert_manifest *manifest, moert_checksum **sums) {
    const size_t pieces = moert_manifest_pieces(manifest);
    size_t *bytes = NULL;
    MOERT_TRY(check_pieces(world, directory, pieces));
    moert_status status = MOERT_NEW_ARRAY(sums, pieces);
    if (status == MOERT_OK)
        status = MOERT_NEW_ARRAY(&bytes, moert_comm_size(world));
    status = moert_comm_agree(world, status);
    if (status == MOERT_OK)
        status = sum_range(world, manifest, *sums, bytes);
    free(bytes);
    return status;
}

moert_status moert_verify_prepare(moert_comm *world, const char *directory) {
    moert_manifest *manifest = NULL;
    moert_checksum *sums = NULL;
    moert_status status = moert_manifest_make(directory, &manifest);
    MOERT_TRY_OR(done, moert_comm_agree(world, status));
    MOERT_TRY_OR(done, sum_all(world, directory, manifest, &sums));
    if (moert_comm_rank(world) == 0)
        status = moert_manifest_write(manifest, sums);
    status = moert_comm_agree(world, status);
done:
    free(sums);
    moert_manifest_free(manifest);
    return status;
}

moert_status moert_verify(moert_comm *world, const char *directory, bool *checked) {
    moert_manifest *manifest = NULL;
    moert_checksum *sums = NULL;
    moert_phase_set(MOERT_PHASE_LOAD);
    moert_status status = moert_manifest_read(directory, &manifest);
    MOERT_TRY_OR(done, moert_comm_agree(world, status));
    *checked = manifest != NULL;
    if (manifest == NULL) {
        status = check_pieces(world, directory, 0);
        goto done;
    }
    MOERT_TRY_OR(done, sum_all(world, directory, manifest, &sums));
    status = moert_comm_agree(world, moert_manifest_compare(manifest, sums));
done:
    free(sums);
    moert_manifest_free(manifest);
    return status;
}
