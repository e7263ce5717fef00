/*
 * manifest.json: the checksums of the files of a checkpoint or of an exported model.
 *
 *   {"format": 1,
 *    "files": {"config.json": {"bytes": 702, "parts": [{"bytes": 702, "xxh3": "..."}]},
 *              "model.safetensors": {"bytes": ..., "parts": [{"bytes": 1248, "xxh3": "..."},
 *                                    {"name": "lm_head.weight", "bytes": ..., "xxh3": "..."},
 *                                    ...]}},
 *    "xxh3": "..."}
 *
 * A file is a sequence of parts: the header and the tensors of a safetensors file; any other file
 * is one part. A part is cut into pieces of MOERT_PIECE_BYTES, whose checksums any thread or rank
 * can compute. The checksum of a part is the checksum of its pieces' checksums in order, so it does
 * not depend on the number of ranks. The last checksum in the manifest covers the manifest's text
 * before it.
 *
 * No function is collective.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/checksum.h"
#include "base/error.h"

enum { MOERT_PIECE_BYTES = 1 << 20 };

typedef struct moert_manifest moert_manifest;

/* *manifest = all files in `directory` except manifest.json, without checksums. Opens every file.
 * Errors: ERROR_IO, ERROR_FORMAT, ERROR_MEMORY. */
moert_status moert_manifest_make(const char *directory, moert_manifest **manifest);
/*
 * Reads DIRECTORY/manifest.json and opens the files that it lists. *manifest = NULL if the
 * directory has no manifest. Errors: ERROR_FORMAT (the manifest is damaged, or a file has another
 * size), ERROR_IO (a file is missing), ERROR_MEMORY.
 */
moert_status moert_manifest_read(const char *directory, moert_manifest **manifest);
/* NULL is legal. */
void moert_manifest_free(moert_manifest *manifest);

/* The number of pieces of all files. */
size_t moert_manifest_pieces(const moert_manifest *manifest);
/* sums[count] = the checksums of pieces [first, first + count), computed on all processors of the
 * calling thread. Errors: ERROR_IO, ERROR_MEMORY. */
moert_status moert_manifest_sum(const moert_manifest *manifest, size_t first, size_t count,
                                moert_checksum *sums);

/* Writes manifest.json, given the checksums of all pieces. Errors: ERROR_IO, ERROR_MEMORY. */
moert_status moert_manifest_write(const moert_manifest *manifest, const moert_checksum *sums);
/* Compares the checksums of all pieces with those of the manifest that was read. The message of
 * ERROR_FORMAT names the first file and tensor that differ. */
moert_status moert_manifest_compare(const moert_manifest *manifest, const moert_checksum *sums);

/* Checks all files of a directory in this process. *bytes = the bytes read, 0 without a
 * manifest. */
moert_status moert_manifest_check(const char *directory, size_t *bytes);
