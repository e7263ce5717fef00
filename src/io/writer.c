/*
 * Writes one .safetensors file from one or many processes.
 *
 * Every writer computes the same header, and hence the same offsets, from the same specs. Ranges of
 * tensors may be written in any order. The bytes do not depend on which process wrote them.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/phase.h"
#include "io/internal.h"

/* The writer flushes to disk whenever it has written this many bytes. */
enum { FLUSH_BYTES = 64 * 1024 * 1024 };

typedef struct placed_tensor {
    moert_tensor_spec spec;        /* owns its name */
    size_t elements, begin, bytes; /* begin: offset within the data */
    moert_checksum *sums;          /* checksums of the tensor's pieces, or NULL */
} placed_tensor;

struct moert_tensor_writer {
    int file;
    char *path;
    placed_tensor *tensors; /* [count], ascending by name */
    size_t count;
    char *header; /* the length prefix, then the JSON with its padding */
    size_t header_bytes, total_bytes, unflushed_bytes;
};

static moert_status copy_specs(moert_tensor_writer *writer, const moert_tensor_spec *specs,
                               size_t count) {
    MOERT_TRY(MOERT_NEW_ARRAY(&writer->tensors, count));
    for (size_t i = 0; i < count; i++) {
        placed_tensor *tensor = &writer->tensors[i];
        if (specs[i].rank > MOERT_FILE_MAX_RANK)
            return MOERT_FAIL(ERROR_USAGE,
                              "%s: tensor '%.200s': %zu dimensions are above the limit %d",
                              writer->path, specs[i].name, specs[i].rank, MOERT_FILE_MAX_RANK);
        tensor->spec = specs[i];
        tensor->spec.name = strdup(specs[i].name);
        if (tensor->spec.name == NULL)
            return MOERT_FAIL(ERROR_MEMORY, "%s: no memory for %zu tensor names", writer->path,
                              count);
        writer->count++;
    }
    qsort(writer->tensors, count, sizeof *writer->tensors, moert_compare_names);
    return MOERT_OK;
}

static moert_status place_tensors(moert_tensor_writer *writer) {
    size_t end = 0;
    for (size_t i = 0; i < writer->count; i++) {
        placed_tensor *tensor = &writer->tensors[i];
        const moert_tensor_spec *spec = &tensor->spec;
        if (strcmp(spec->name, "__metadata__") == 0)
            return MOERT_FAIL(ERROR_USAGE, "%s: no tensor may be called '%s'", writer->path,
                              spec->name);
        if (i > 0 && strcmp(spec->name, tensor[-1].spec.name) == 0)
            return MOERT_FAIL(ERROR_USAGE, "%s: tensor '%.200s' is given twice", writer->path,
                              spec->name);
        tensor->begin = end;
        if (!moert_shape_size(spec->type, spec->rank, spec->shape, &tensor->elements,
                              &tensor->bytes) ||
            __builtin_add_overflow(end, tensor->bytes, &end) || end > INT64_MAX / 2) {
            char text[MOERT_SHAPE_TEXT_BYTES];
            return MOERT_FAIL(
                ERROR_USAGE, "%s: tensor '%.200s' of shape %s makes the file too large",
                writer->path, spec->name, moert_shape_text(spec->rank, spec->shape, text));
        }
    }
    writer->total_bytes = end;
    return MOERT_OK;
}

/* The JSON object of a tensor, with the keys dtype, shape and data_offsets, or NULL. */
static json_t *tensor_entry(const placed_tensor *tensor) {
    json_t *shape = json_array();
    for (size_t i = 0; i < tensor->spec.rank; i++)
        json_array_append_new(shape, json_integer((json_int_t)tensor->spec.shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", moert_file_type_text(tensor->spec.type),
                     "shape", shape, "data_offsets", (json_int_t)tensor->begin,
                     (json_int_t)(tensor->begin + tensor->bytes));
}

static moert_status add_metadata(const moert_tensor_writer *writer, const char *const *metadata,
                                 json_t *root) {
    if (metadata == NULL || metadata[0] == NULL)
        return MOERT_OK;
    json_t *object = json_object();
    if (json_object_set_new(root, "__metadata__", object) != 0)
        return MOERT_FAIL(ERROR_MEMORY, "%s: no memory for the header", writer->path);
    for (size_t i = 0; metadata[i] != NULL; i += 2) {
        if (metadata[i + 1] == NULL || json_object_get(object, metadata[i]) != NULL ||
            json_object_set_new(object, metadata[i], json_string(metadata[i + 1])) != 0) {
            MOERT_TRY(moert_json_memory(writer->path));
            return MOERT_FAIL(ERROR_USAGE,
                              "%s: metadata '%.200s' has no value, is given twice or is not UTF-8",
                              writer->path, metadata[i]);
        }
    }
    return MOERT_OK;
}

/* *json = the JSON of the header; the caller frees it. */
static moert_status header_json(const moert_tensor_writer *writer, const char *const *metadata,
                                char **json) {
    moert_status status = MOERT_OK;
    json_t *root = json_object();
    MOERT_TRY_OR(free_root, add_metadata(writer, metadata, root));
    for (size_t i = 0; i < writer->count; i++) {
        const char *name = writer->tensors[i].spec.name;
        if (json_object_set_new(root, name, tensor_entry(&writer->tensors[i])) != 0) {
            MOERT_TRY_OR(free_root, moert_json_memory(writer->path));
            status = MOERT_FAIL(ERROR_USAGE, "%s: the name of tensor '%.200s' is not UTF-8",
                                writer->path, name);
            goto free_root;
        }
    }
    status = moert_json_text(writer->path, root, JSON_COMPACT, json);
free_root:
    json_decref(root);
    return status;
}

static moert_status make_header(moert_tensor_writer *writer, const char *const *metadata) {
    moert_status status = MOERT_OK;
    char *json;
    MOERT_TRY(header_json(writer, metadata, &json));
    size_t bytes = strlen(json), padded = moert_round_up(bytes, 8);
    if (padded > MOERT_HEADER_LIMIT_BYTES) {
        status = MOERT_FAIL(ERROR_USAGE, "%s: the header takes %zu bytes, above the limit %d",
                            writer->path, padded, MOERT_HEADER_LIMIT_BYTES);
        goto free_json;
    }
    MOERT_TRY_OR(free_json, moert_alloc(&writer->header, MOERT_HEADER_PREFIX_BYTES + padded, 1));
    for (int i = 0; i < MOERT_HEADER_PREFIX_BYTES; i++)
        writer->header[i] = (char)((uint64_t)padded >> 8 * i & 0xff);
    memcpy(writer->header + MOERT_HEADER_PREFIX_BYTES, json, bytes);
    memset(writer->header + MOERT_HEADER_PREFIX_BYTES + bytes, ' ', padded - bytes);
    writer->header_bytes = MOERT_HEADER_PREFIX_BYTES + padded;
    writer->total_bytes += writer->header_bytes;
free_json:
    free(json);
    return status;
}

static moert_status write_all(const moert_tensor_writer *writer, const char *what, const void *data,
                              size_t bytes, size_t offset) {
    const char *source = data;
    while (bytes > 0) {
        ssize_t written = pwrite(writer->file, source, bytes, (off_t)offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return MOERT_FAIL(ERROR_IO,
                              "%s: %zu bytes of %.200s cannot be written at byte %zu: %s (is the "
                              "disk or the quota full?)",
                              writer->path, bytes, what, offset,
                              written < 0 ? strerror(errno) : "nothing was accepted");
        source += written;
        offset += (size_t)written;
        bytes -= (size_t)written;
    }
    return MOERT_OK;
}

static moert_status create_file(moert_tensor_writer *writer) {
    if (unlink(writer->path) != 0 && errno != ENOENT)
        return MOERT_FAIL(ERROR_IO,
                          "%s: the older file cannot be replaced: %s (is it a directory?)",
                          writer->path, strerror(errno));
    writer->file = open(writer->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (writer->file < 0)
        return MOERT_FAIL(ERROR_IO,
                          "%s: cannot be created: %s (does the directory exist, and may you write "
                          "there?)",
                          writer->path, strerror(errno));
    if (ftruncate(writer->file, (off_t)writer->total_bytes) != 0)
        return MOERT_FAIL(ERROR_IO,
                          "%s: cannot get %zu bytes: %s (is there a limit on file sizes?)",
                          writer->path, writer->total_bytes, strerror(errno));
    return write_all(writer, "the header", writer->header, writer->header_bytes, 0);
}

static moert_status join_file(moert_tensor_writer *writer) {
    struct stat info;
    writer->file = open(writer->path, O_RDWR | O_CLOEXEC);
    if (writer->file < 0 || fstat(writer->file, &info) != 0)
        return MOERT_FAIL(ERROR_IO,
                          "%s: cannot be opened to add tensors: %s (is the directory shared by all "
                          "ranks?)",
                          writer->path, strerror(errno));
    char *present;
    MOERT_TRY(moert_alloc(&present, writer->header_bytes, 1));
    ssize_t bytes = pread(writer->file, present, writer->header_bytes, 0);
    const int reason = errno;
    bool same = bytes == (ssize_t)writer->header_bytes &&
                (size_t)info.st_size == writer->total_bytes &&
                memcmp(present, writer->header, writer->header_bytes) == 0;
    free(present);
    if (bytes < 0)
        return MOERT_FAIL(ERROR_IO, "%s: cannot be read: %s", writer->path, strerror(reason));
    if (!same)
        return MOERT_FAIL(ERROR_MISMATCH,
                          "%s: has another layout than the %zu tensors (%zu bytes) of this writer",
                          writer->path, writer->count, writer->total_bytes);
    return MOERT_OK;
}

static void destroy_writer(moert_tensor_writer *writer) {
    if (writer->file >= 0)
        close(writer->file);
    for (size_t i = 0; i < writer->count; i++)
        free((char *)writer->tensors[i].spec.name);
    MOERT_FREE(writer->tensors, writer->header, writer->path, writer);
}

moert_status moert_writer_open(const char *path, const moert_tensor_spec *specs, size_t count,
                               const char *const *metadata, bool create,
                               moert_tensor_writer **writer) {
    moert_status status = MOERT_OK;
    moert_tensor_writer *made;
    MOERT_TRY(MOERT_NEW(&made));
    made->file = -1;
    made->path = strdup(path);
    if (made->path == NULL) {
        status = MOERT_FAIL(ERROR_MEMORY, "%s: no memory for its path", path);
        goto destroy;
    }
    MOERT_TRY_OR(destroy, copy_specs(made, specs, count));
    MOERT_TRY_OR(destroy, place_tensors(made));
    MOERT_TRY_OR(destroy, make_header(made, metadata));
    MOERT_TRY_OR(destroy, create ? create_file(made) : join_file(made));
    *writer = made;
    return MOERT_OK;
destroy:
    destroy_writer(made);
    return status;
}

void moert_writer_watch(moert_tensor_writer *writer, moert_manifest *manifest) {
    for (size_t i = 0; i < writer->count; i++) {
        placed_tensor *tensor = &writer->tensors[i];
        tensor->sums = moert_manifest_find(manifest, writer->path,
                                           writer->header_bytes + tensor->begin, tensor->bytes);
    }
}

/* Flushes every FLUSH_BYTES, so that the last flush is short and the watchdog sees progress. */
static moert_status flush_often(moert_tensor_writer *writer, size_t bytes) {
    writer->unflushed_bytes += bytes;
    moert_phase_tick();
    if (writer->unflushed_bytes < FLUSH_BYTES)
        return MOERT_OK;
    writer->unflushed_bytes = 0;
    if (fdatasync(writer->file) != 0)
        return MOERT_FAIL(ERROR_IO, "%s: cannot be flushed to disk: %s (is the disk full?)",
                          writer->path, strerror(errno));
    moert_phase_tick();
    return MOERT_OK;
}

static const placed_tensor *find_placed(const moert_tensor_writer *writer, const char *name) {
    const placed_tensor key = {.spec.name = name};
    return bsearch(&key, writer->tensors, writer->count, sizeof *writer->tensors,
                   moert_compare_names);
}

moert_status moert_writer_put(moert_tensor_writer *writer, const char *name, size_t first,
                              size_t count, const void *data) {
    const placed_tensor *tensor = find_placed(writer, name);
    if (tensor == NULL)
        return MOERT_FAIL(ERROR_USAGE, "%s: was laid out without a tensor '%.200s'", writer->path,
                          name);
    MOERT_TRY(moert_check_elements(writer->path, name, tensor->elements, first, count));
    size_t each = moert_file_type_bytes(tensor->spec.type);
    if (tensor->sums != NULL)
        moert_pieces_sum(tensor->sums, tensor->bytes, first * each, count * each, data);
    MOERT_TRY(write_all(writer, name, data, count * each,
                        writer->header_bytes + tensor->begin + first * each));
    return flush_often(writer, count * each);
}

moert_status moert_writer_put_floats(moert_tensor_writer *writer, const char *name, size_t first,
                                     size_t count, const float *values) {
    enum { PIECE = MOERT_PIECE_BYTES / sizeof(uint16_t) };
    const placed_tensor *tensor = find_placed(writer, name);
    moert_status status = MOERT_OK;
    uint16_t *rounded;
    if (tensor == NULL || tensor->spec.type != MOERT_FILE_BF16)
        return moert_writer_put(writer, name, first, count, values);
    MOERT_TRY(MOERT_NEW_ARRAY(&rounded, moert_min(count, PIECE)));
    for (size_t done = 0, part; status == MOERT_OK && done < count; done += part) {
        part = moert_min(count - done, PIECE);
        for (size_t i = 0; i < part; i++)
            rounded[i] = (uint16_t)moert_dtype_encode(MOERT_DTYPE_BF16, values[done + i]);
        status = moert_writer_put(writer, name, first + done, part, rounded);
    }
    free(rounded);
    return status;
}

moert_status moert_writer_close(moert_tensor_writer *writer) {
    moert_status status = MOERT_OK;
    if (writer == NULL)
        return MOERT_OK;
    int failed = fsync(writer->file) != 0, reason = errno;
    if (close(writer->file) != 0 && !failed) {
        failed = 1;
        reason = errno;
    }
    writer->file = -1;
    if (failed)
        status = MOERT_FAIL(ERROR_IO, "%s: cannot be flushed to disk: %s (is the disk full?)",
                            writer->path, strerror(reason));
    destroy_writer(writer);
    return status;
}
