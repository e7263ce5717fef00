/*
 * Checksums of a checkpoint or an exported model (io/manifest.h). The ranks compute them for the
 * bytes that they write or read anyway, and share the remaining ones.
 */
#pragma once

#include "comm/comm.h"
#include "io/manifest.h"

/* Gives all ranks the checksums that any rank has computed. Collective. Errors: ERROR_MISMATCH (the
 * ranks see different files), ERROR_COMM. */
moert_status moert_checksums_exchange(moert_comm *world, moert_manifest *manifest);
/* Computes the checksums that no rank has, in this rank's part of all pieces. The files must be
 * complete. Not collective. Errors: those of moert_manifest_sum. */
moert_status moert_checksums_sum(const moert_comm *world, moert_manifest *manifest);

/*
 * Reads the manifest of `directory`, and compares all bytes but the tensors' values. On success the
 * small files and the headers are known to be undamaged. *manifest = NULL if there is none, or on
 * failure. Collective. Errors: those of moert_manifest_read, _sum and _compare, ERROR_MISMATCH (the
 * ranks see different files).
 */
moert_status moert_checksums_begin(moert_comm *world, const char *directory,
                                   moert_manifest **manifest);
/*
 * Compares all bytes after loading the tensors; `status` is the result of loading, the same on all
 * ranks. If damage is found, its error is returned instead of `status`. `manifest` may be NULL.
 * Collective. Errors: `status`, those of moert_manifest_sum and _compare.
 */
moert_status moert_checksums_finish(moert_comm *world, moert_manifest *manifest,
                                    moert_status status);
