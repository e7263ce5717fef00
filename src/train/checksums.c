/* The ranks compute and compare checksums together. */
#include "train/checksums.h"

#include <stdlib.h>

#include "base/phase.h"
#include "io/manifest.h"
#include "model/model.h"

/* Checks that all ranks have found the same number of pieces; a rank without a manifest has 0. */
static moert_status check_pieces(moert_comm *world, const char *directory,
                                 const moert_manifest *manifest) {
    const size_t pieces = manifest != NULL ? moert_manifest_pieces(manifest) : 0;
    uint64_t smallest = pieces;
    MOERT_TRY(moert_comm_smallest(world, &smallest));
    return moert_comm_agree(
        world, smallest == pieces
                   ? MOERT_OK
                   : MOERT_FAIL(ERROR_MISMATCH,
                                "%s: this rank sees %zu pieces of 1 MiB, but another rank sees %zu "
                                "(do all hosts see the same file system?)",
                                directory, pieces, (size_t)smallest));
}

moert_status moert_checksums_exchange(moert_comm *world, moert_manifest *manifest) {
    MOERT_TRY(check_pieces(world, moert_manifest_directory(manifest), manifest));
    return moert_comm_or(world, moert_manifest_sums(manifest),
                         moert_manifest_pieces(manifest) * sizeof(moert_checksum));
}

moert_status moert_checksums_sum(const moert_comm *world, moert_manifest *manifest) {
    size_t first, count;
    moert_model_partition(moert_manifest_pieces(manifest), moert_comm_rank(world),
                          moert_comm_size(world), &first, &count);
    return moert_manifest_sum(manifest, first, count);
}

/* Exchanges the checksums that single ranks have computed. Then computes the checksums that are
 * still missing. */
static moert_status sum_all(moert_comm *world, moert_manifest *manifest) {
    MOERT_TRY(moert_checksums_exchange(world, manifest));
    MOERT_TRY(moert_comm_agree(world, moert_checksums_sum(world, manifest)));
    return moert_checksums_exchange(world, manifest);
}

moert_status moert_checksums_begin(moert_comm *world, const char *directory,
                                   moert_manifest **manifest) {
    moert_phase_set(MOERT_PHASE_LOAD);
    moert_status status = moert_manifest_read(directory, manifest);
    if (status == MOERT_OK && *manifest != NULL)
        status = moert_manifest_sum_heads(*manifest);
    if (status == MOERT_OK && *manifest != NULL)
        status = moert_manifest_compare(*manifest);
    status = moert_comm_agree(world, status);
    if (status == MOERT_OK)
        status = check_pieces(world, directory, *manifest);
    if (status != MOERT_OK) {
        moert_manifest_free(*manifest);
        *manifest = NULL;
    }
    return status;
}

moert_status moert_checksums_finish(moert_comm *world, moert_manifest *manifest,
                                    moert_status status) {
    if (manifest == NULL || (status != MOERT_OK && status != MOERT_ERROR_FORMAT))
        return status;
    char *const message = moert_error_keep();
    moert_status found = sum_all(world, manifest);
    if (found == MOERT_OK)
        found = moert_comm_agree(world, moert_manifest_compare(manifest));
    if (found == MOERT_OK)
        return moert_error_first(message, status, MOERT_OK);
    free(message);
    return found;
}
