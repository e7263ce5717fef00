/* Checksums of a checkpoint or an exported model, computed by all ranks, each for a part of its
 * bytes. See io/manifest.h. */
#pragma once

#include <stdbool.h>

#include "comm/comm.h"

/* Writes DIRECTORY/manifest.json for the files that are there. Collective. Errors: those of
 * moert_manifest_make, _sum and _write. */
moert_status moert_verify_prepare(moert_comm *world, const char *directory);

/* Reads all files of `directory` and compares them with its manifest; *checked =
 * it has one. Collective. Errors: those of moert_manifest_read,
 * _sum and _compare, ERROR_MISMATCH (the ranks see different files). */
moert_status moert_verify(moert_comm *world, const char *directory, bool *checked);
