/*
 * manifest.json: the checksums of the files of a checkpoint or of an exported model.
 *
 *   {"format":1,
 *    "files":{"config.json":{"bytes":702,"parts":[{"bytes":702,"xxh3":"..."}]},
 *             "model.safetensors":{"bytes":...,"parts":[{"bytes":1248,"xxh3":"..."},
 *                                  {"name":"lm_head.weight","bytes":...,"xxh3":"..."},
 *                                  ...]}},
 *    "xxh3":"..."}
 *
 * A file is a sequence of parts: the header and the tensors of a safetensors file; any other file
 * is one part. A part is cut into pieces of MOERT_PIECE_BYTES (pieces.h), whose checksums any
 * thread or rank can compute, while it reads or writes the bytes or later. The checksum of a part
 * is the checksum of its pieces' checksums in order, so it does not depend on the number of ranks.
 * The last checksum in the manifest covers the manifest's text before it.
 *
 * No function is collective.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "io/pieces.h"

typedef struct moert_manifest moert_manifest;

/* *manifest = a manifest of DIRECTORY without files. ERROR_MEMORY. */
moert_status moert_manifest_create(const char *directory, moert_manifest **manifest);
/* Adds DIRECTORY/name, without checksums. A safetensors file needs its size and header only.
 * Invalidates moert_manifest_sums. Errors: ERROR_IO, ERROR_FORMAT, ERROR_MEMORY. */
moert_status moert_manifest_add(moert_manifest *manifest, const char *name);
/*
 * Reads DIRECTORY/manifest.json and compares the sizes of the files that it lists. *manifest = NULL
 * if the directory has no manifest. Errors: ERROR_FORMAT (the manifest is damaged, or a file has
 * another size), ERROR_IO (a file is missing), ERROR_MEMORY.
 */
moert_status moert_manifest_read(const char *directory, moert_manifest **manifest);
/* NULL is legal. */
void moert_manifest_free(moert_manifest *manifest);
const char *moert_manifest_directory(const moert_manifest *manifest);

/* ---- checksums of the files' present bytes ---- */

/* The number of pieces of all files, and their checksums [pieces]; a missing checksum is zero. */
size_t moert_manifest_pieces(const moert_manifest *manifest);
moert_checksum *moert_manifest_sums(moert_manifest *manifest);

/* The checksums of the pieces of bytes [offset, offset + bytes) of a file; NULL if the manifest
 * lists no part with exactly these bytes. Readers and writers store checksums in the returned
 * array. */
moert_checksum *moert_manifest_find(moert_manifest *manifest, const char *path, size_t offset,
                                    size_t bytes);

/* Computes the missing checksums of pieces [first, first + count), on all processors of the calling
 * thread. Errors: ERROR_IO, ERROR_MEMORY. */
moert_status moert_manifest_sum(moert_manifest *manifest, size_t first, size_t count);
/* Computes the checksums of all bytes but the tensors' values. */
moert_status moert_manifest_sum_heads(moert_manifest *manifest);

/* Writes manifest.json; all checksums must be computed. Errors: ERROR_IO, ERROR_MEMORY. */
moert_status moert_manifest_write(const moert_manifest *manifest);
/* Compares the parts of which all checksums are computed with the manifest that was read. The
 * message of ERROR_FORMAT names the first file and tensor that differ. */
moert_status moert_manifest_compare(const moert_manifest *manifest);

/* Checks all files of a directory in this process. *bytes = the bytes read; 0 if the directory has
 * no manifest. */
moert_status moert_manifest_check(const char *directory, size_t *bytes);
