/*
 * Checksums of a checkpoint or an exported model (io/manifest.h). Each rank computes the checksums
 * of bytes that it writes or reads anyway. The remaining checksums are divided among the ranks.
 */
#pragma once

#include "comm/comm.h"
#include "io/manifest.h"

/* Gives every rank the checksums that any rank has computed. Collective. Errors: ERROR_MISMATCH
 * (the ranks have found different files), ERROR_COMM. */
moert_status moert_checksums_exchange(moert_comm *world, moert_manifest *manifest);
/* Computes the checksums that are still missing, in this rank's part of all pieces. The files must
 * be complete. Not collective. Errors: those of moert_manifest_sum. */
moert_status moert_checksums_sum(const moert_comm *world, moert_manifest *manifest);

/*
 * Reads the manifest of `directory`, and compares the checksums of all bytes except the tensors'
 * values. After success, the small files and the headers are undamaged. *manifest is NULL if the
 * directory has no manifest, or on failure. Collective. Errors: those of moert_manifest_read, _sum
 * and _compare, ERROR_MISMATCH (the ranks have found different files).
 */
moert_status moert_checksums_begin(moert_comm *world, const char *directory,
                                   moert_manifest **manifest);
/*
 * Compares the checksums of all bytes, after the tensors are loaded. `status` is the result of
 * loading and must be the same on all ranks. If a checksum differs, the error about it is returned
 * instead of `status`. `manifest` may be NULL. Collective. Errors: `status`, those of
 * moert_manifest_sum and _compare.
 */
moert_status moert_checksums_finish(moert_comm *world, moert_manifest *manifest,
                                    moert_status status);
