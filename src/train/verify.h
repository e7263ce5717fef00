/* Checksums of a checkpoint or an exported model (io/manifest.h). Each rank computes the checksums
 * of a part of the bytes. */
#pragma once

#include <stdbool.h>

#include "comm/comm.h"

/* Writes DIRECTORY/manifest.json for the files in the directory. Collective. Errors: those of
 * moert_manifest_make, _sum and _write. */
moert_status moert_verify_prepare(moert_comm *world, const char *directory);

/* Reads all files of `directory` and compares them with its manifest. *checked = whether there is a
 * manifest. Collective. Errors: those of moert_manifest_read, _sum and _compare, ERROR_MISMATCH
 * (the ranks see different files). */
moert_status moert_verify(moert_comm *world, const char *directory, bool *checked);
