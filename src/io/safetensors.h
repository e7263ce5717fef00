/*
 * safetensors files: mapped reading of one file or of a sharded directory, and writing by many
 * ranks into one file.
 *
 * No function is collective; callers coordinate the ranks. Everything in a file is validated
 * (header length, JSON, dtypes, shapes, offsets, overlaps, duplicates, truncation). A malformed
 * file gives one message that names file, tensor, value and limit.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "io/manifest.h"

/* X(name, text in files, bytes): the element types of the format; I64 to U8 are the integers. */
/* clang-format off */
#define MOERT_FILE_TYPE_TABLE(X)                                                                   \
    X(F64, "F64", 8)                                                                               \
    X(F32, "F32", 4)                                                                               \
    X(F16, "F16", 2)                                                                               \
    X(BF16, "BF16", 2)                                                                             \
    X(F8_E4M3, "F8_E4M3", 1)                                                                       \
    X(F8_E5M2, "F8_E5M2", 1)                                                                       \
    X(F8_E8M0, "F8_E8M0", 1)                                                                       \
    X(I64, "I64", 8)                                                                               \
    X(I32, "I32", 4)                                                                               \
    X(I16, "I16", 2)                                                                               \
    X(I8, "I8", 1)                                                                                 \
    X(U64, "U64", 8)                                                                               \
    X(U32, "U32", 4)                                                                               \
    X(U16, "U16", 2)                                                                               \
    X(U8, "U8", 1)                                                                                 \
    X(BOOL, "BOOL", 1)
/* clang-format on */

typedef enum moert_file_type {
#define MOERT_FILE_TYPE_ENUM(name, text, bytes) MOERT_FILE_##name,
    MOERT_FILE_TYPE_TABLE(MOERT_FILE_TYPE_ENUM)
#undef MOERT_FILE_TYPE_ENUM
} moert_file_type;

enum { MOERT_FILE_MAX_RANK = 8 };

/* The name in files, such as "BF16", and the bytes of one element. */
const char *moert_file_type_text(moert_file_type type);
size_t moert_file_type_bytes(moert_file_type type);

typedef struct moert_tensor {
    const char *name;
    moert_file_type type;
    size_t rank, shape[MOERT_FILE_MAX_RANK];
    size_t elements, bytes;
    const void *data;     /* mapped, read-only, may be unaligned */
    const char *file;     /* path of the file that holds the tensor */
    moert_checksum *sums; /* checksums of the tensor's pieces, which reads fill in
                             (moert_tensors_watch), or NULL */
} moert_tensor;

typedef struct moert_tensors moert_tensors;

/*
 * Opens a .safetensors file, a model.safetensors.index.json, or a directory that holds
 * model.safetensors or that index. With an index it opens all shards. Every tensor of the index
 * must be present, and only the tensors of the index are listed. The files stay mapped until
 * moert_tensors_close and must not shrink until then. Errors: ERROR_IO, ERROR_FORMAT, ERROR_MEMORY.
 */
moert_status moert_tensors_open(const char *path, moert_tensors **tensors);
void moert_tensors_close(moert_tensors *tensors);
/* From now on moert_tensor_read_f32 stores the checksums of the pieces that it reads in the
 * manifest, and fails with ERROR_IO if the disk cannot read them. */
void moert_tensors_watch(moert_tensors *tensors, moert_manifest *manifest);
size_t moert_tensors_count(const moert_tensors *tensors);
const moert_tensor *moert_tensors_at(const moert_tensors *tensors,
                                     size_t index); /* ascending by name */
const moert_tensor *moert_tensors_find(const moert_tensors *tensors,
                                       const char *name); /* NULL if absent */
/* Whether moert_tensors_find or _get has returned this tensor. */
bool moert_tensors_were_found(const moert_tensors *tensors, size_t index);

/*
 * *tensor = the tensor with this name and shape. ERROR_MISMATCH if it is absent or has another
 * shape; the message has the nearest name or both shapes.
 */
moert_status moert_tensors_get(const moert_tensors *tensors, const char *name, size_t rank,
                               const size_t *shape, const moert_tensor **tensor);

/* out[count] = elements [first, first + count) as float32, exact or rounded to nearest even (F64),
 * from F64, F32, F16 or BF16 (else ERROR_UNSUPPORTED); ERROR_USAGE beyond the last element. */
moert_status moert_tensor_read_f32(const moert_tensor *tensor, size_t first, size_t count,
                                   float *out);
/* out[count] = elements as int32, from any integer type (else ERROR_UNSUPPORTED); ERROR_FORMAT if
 * a value does not fit; ERROR_USAGE beyond the last element. */
moert_status moert_tensor_read_i32(const moert_tensor *tensor, size_t first, size_t count,
                                   int32_t *out);

/* ---- writing ---- */

typedef struct moert_tensor_spec {
    const char *name;
    moert_file_type type;
    size_t rank, shape[MOERT_FILE_MAX_RANK];
} moert_tensor_spec;

typedef struct moert_tensor_writer moert_tensor_writer;

/*
 * Opens a file whose layout follows from the specs; the order of the specs does not matter. Header
 * and data are ascending by name, and spaces pad the header to a multiple of 8 bytes. Every rank
 * opens the file with the same specs; exactly one rank opens it with `create`, before the other
 * ranks. `create` replaces an older file, which stays intact for processes that have mapped it.
 * metadata: pairs {key, value, ..., NULL} or NULL. The bytes depend only on the arguments and the
 * data. Errors: ERROR_IO with errno's text, ERROR_MISMATCH (the file has another layout),
 * ERROR_USAGE (specs), ERROR_MEMORY.
 */
moert_status moert_writer_open(const char *path, const moert_tensor_spec *specs, size_t count,
                               const char *const *metadata, bool create,
                               moert_tensor_writer **writer);
/* From now on moert_writer_put stores the checksums of the pieces that it writes in the manifest,
 * to which the caller has added the file. */
void moert_writer_watch(moert_tensor_writer *writer, moert_manifest *manifest);
/* Writes elements [first, first + count) of a tensor; `data` has the tensor's type. ERROR_IO;
 * ERROR_USAGE for an unknown name or beyond the last element. */
moert_status moert_writer_put(moert_tensor_writer *writer, const char *name, size_t first,
                              size_t count, const void *data);
/* Like moert_writer_put for float32 values and a tensor in F32 or BF16 (rounded to nearest even).
 * Errors also: ERROR_MEMORY. */
moert_status moert_writer_put_floats(moert_tensor_writer *writer, const char *name, size_t first,
                                     size_t count, const float *values);
/* Flushes to disk (fsync), closes the file and frees the writer, even on failure. ERROR_IO, for
 * example on a full disk. */
moert_status moert_writer_close(moert_tensor_writer *writer);
