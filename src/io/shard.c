/*
 * Maps one .safetensors file and validates it before use.
 *
 *   file = N as u64 (little endian), N bytes of JSON, data
 *   JSON = {"name":{"dtype":"F32","shape":[96,64],"data_offsets":[begin,end]},...,
 *           "__metadata__":{"key":"text",...}}
 *
 * Offsets count from the start of the data; the tensors cover the data without overlap or hole
 * (huggingface/safetensors, "Format").
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/files.h"
#include "base/memory.h"
#include "io/internal.h"

static const char metadata_key[] = "__metadata__";

/* The extent of the file's data, within which read_entries checks that tensors lie. */
typedef struct data_part {
    const char *path;
    const unsigned char *start;
    size_t bytes;
} data_part;

#define FAIL_TENSOR(tensor, format, ...)                                                           \
    MOERT_FAIL(ERROR_FORMAT, "%s: tensor '%.200s': " format, (tensor)->file, (tensor)->name,       \
               ##__VA_ARGS__)

static moert_status map_file(const char *path, moert_shard *shard) {
    moert_status status = MOERT_OK;
    size_t bytes;
    int file;
    MOERT_TRY(moert_file_open(path, &file, &bytes));
    if (bytes < MOERT_HEADER_PREFIX_BYTES) {
        status = MOERT_FAIL(ERROR_FORMAT,
                            "%s: has %zu bytes, less than the %d of a header length (truncated?)",
                            path, bytes, MOERT_HEADER_PREFIX_BYTES);
        goto close_file;
    }
    shard->map_bytes = bytes;
    shard->map = mmap(NULL, shard->map_bytes, PROT_READ, MAP_SHARED, file, 0);
    if (shard->map == MAP_FAILED) {
        shard->map = NULL;
        status = MOERT_FAIL(ERROR_IO, "%s: %zu bytes cannot be mapped: %s (is ulimit -v set?)",
                            path, shard->map_bytes, strerror(errno));
    }
close_file:
    close(file);
    return status;
}

static moert_status header_bytes(const moert_shard *shard, size_t *bytes) {
    const unsigned char *prefix = shard->map;
    uint64_t length = 0;
    for (int i = MOERT_HEADER_PREFIX_BYTES - 1; i >= 0; i--)
        length = length << 8 | prefix[i];
    if (length > MOERT_HEADER_LIMIT_BYTES)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: the header claims %llu bytes, above the limit %d (is it a "
                          ".safetensors file?)",
                          shard->path, (unsigned long long)length, MOERT_HEADER_LIMIT_BYTES);
    if (length > shard->map_bytes - MOERT_HEADER_PREFIX_BYTES)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: the header claims %llu bytes, but only %zu follow its length "
                          "(truncated?)",
                          shard->path, (unsigned long long)length,
                          shard->map_bytes - MOERT_HEADER_PREFIX_BYTES);
    if (length == 0 || prefix[MOERT_HEADER_PREFIX_BYTES] != '{')
        return MOERT_FAIL(ERROR_FORMAT, "%s: the header does not begin with '{'", shard->path);
    *bytes = (size_t)length;
    return MOERT_OK;
}

static moert_status check_metadata(const char *path, json_t *metadata) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata))
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is not an object of strings", path, metadata_key);
    json_object_foreach(metadata, key, value) {
        if (!json_is_string(value))
            return MOERT_FAIL(ERROR_FORMAT, "%s: %s: the value of '%.200s' is not a string", path,
                              metadata_key, key);
    }
    return MOERT_OK;
}

static moert_status read_size(const moert_tensor *tensor, const char *what, const json_t *value,
                              size_t *size) {
    if (!json_is_integer(value))
        return FAIL_TENSOR(tensor, "%s has a value that is no integer", what);
    if (json_integer_value(value) < 0)
        return FAIL_TENSOR(tensor, "%s has the negative value %lld", what,
                           (long long)json_integer_value(value));
    *size = (size_t)json_integer_value(value);
    return MOERT_OK;
}

static moert_status read_type(const json_t *info, moert_tensor *tensor) {
    const char *text = json_string_value(json_object_get(info, "dtype"));
    if (text == NULL)
        return FAIL_TENSOR(tensor, "no \"dtype\" string");
#define FILE_TYPE_MATCH(type_name, type_text, type_bytes)                                          \
    if (strcmp(text, type_text) == 0) {                                                            \
        tensor->type = MOERT_FILE_##type_name;                                                     \
        return MOERT_OK;                                                                           \
    }
    MOERT_FILE_TYPE_TABLE(FILE_TYPE_MATCH)
#undef FILE_TYPE_MATCH
#define FILE_TYPE_LIST(type_name, type_text, type_bytes) " " type_text
    return FAIL_TENSOR(
        tensor, "unknown dtype '%.32s' (known:" MOERT_FILE_TYPE_TABLE(FILE_TYPE_LIST) ")", text);
#undef FILE_TYPE_LIST
}

static moert_status read_shape(const json_t *info, moert_tensor *tensor) {
    const json_t *shape = json_object_get(info, "shape");
    char text[MOERT_SHAPE_TEXT_BYTES];
    if (!json_is_array(shape))
        return FAIL_TENSOR(tensor, "no \"shape\" array");
    tensor->rank = json_array_size(shape);
    if (tensor->rank > MOERT_FILE_MAX_RANK)
        return FAIL_TENSOR(tensor, "%zu dimensions are above the limit %d", tensor->rank,
                           MOERT_FILE_MAX_RANK);
    for (size_t i = 0; i < tensor->rank; i++)
        MOERT_TRY(read_size(tensor, "\"shape\"", json_array_get(shape, i), &tensor->shape[i]));
    if (!moert_shape_size(tensor->type, tensor->rank, tensor->shape, &tensor->elements,
                          &tensor->bytes))
        return FAIL_TENSOR(tensor, "the shape %s overflows the limit of %zu bytes",
                           moert_shape_text(tensor->rank, tensor->shape, text), SIZE_MAX);
    return MOERT_OK;
}

static moert_status read_offsets(const data_part *data, const json_t *info, moert_tensor *tensor) {
    const json_t *offsets = json_object_get(info, "data_offsets");
    char text[MOERT_SHAPE_TEXT_BYTES];
    size_t begin, end;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2)
        return FAIL_TENSOR(tensor, "no \"data_offsets\" [begin, end]");
    MOERT_TRY(read_size(tensor, "\"data_offsets\"", json_array_get(offsets, 0), &begin));
    MOERT_TRY(read_size(tensor, "\"data_offsets\"", json_array_get(offsets, 1), &end));
    if (begin > end || end > data->bytes)
        return FAIL_TENSOR(tensor,
                           "bytes [%zu, %zu) are not within the %zu bytes of data (truncated?)",
                           begin, end, data->bytes);
    if (end - begin != tensor->bytes)
        return FAIL_TENSOR(tensor, "%s %s needs %zu bytes, but data_offsets give %zu",
                           moert_file_type_text(tensor->type),
                           moert_shape_text(tensor->rank, tensor->shape, text), tensor->bytes,
                           end - begin);
    tensor->data = data->start + begin;
    return MOERT_OK;
}

static moert_status read_entries(const data_part *data, json_t *header, moert_shard *shard) {
    size_t name_bytes = 0;
    const char *key;
    json_t *info;
    json_object_foreach(header, key, info) name_bytes += strlen(key) + 1;
    MOERT_TRY(moert_alloc(&shard->names, name_bytes, 1));
    MOERT_TRY(MOERT_NEW_ARRAY(&shard->tensors, json_object_size(header)));
    char *name = shard->names;
    json_object_foreach(header, key, info) {
        if (strcmp(key, metadata_key) == 0) {
            MOERT_TRY(check_metadata(data->path, info));
            continue;
        }
        moert_tensor *tensor = &shard->tensors[shard->count];
        tensor->name = strcpy(name, key);
        tensor->file = shard->path;
        name += strlen(key) + 1;
        if (!json_is_object(info))
            return FAIL_TENSOR(tensor, "its entry is not an object");
        MOERT_TRY(read_type(info, tensor));
        MOERT_TRY(read_shape(info, tensor));
        MOERT_TRY(read_offsets(data, info, tensor));
        shard->count++;
    }
    return MOERT_OK;
}

int moert_compare_positions(const void *left, const void *right) {
    const moert_tensor *a = left, *b = right;
    const unsigned char *a_start = a->data, *b_start = b->data;
    if (a_start != b_start)
        return a_start < b_start ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static moert_status check_coverage(const data_part *data, moert_shard *shard) {
    size_t covered = 0;
    const char *previous = "the start";
    qsort(shard->tensors, shard->count, sizeof *shard->tensors, moert_compare_positions);
    for (size_t i = 0; i < shard->count; i++) {
        const moert_tensor *tensor = &shard->tensors[i];
        size_t begin = (size_t)((const unsigned char *)tensor->data - data->start);
        if (begin < covered)
            return FAIL_TENSOR(tensor,
                               "begins at byte %zu of the data, inside '%.200s', which ends at %zu",
                               begin, previous, covered);
        if (begin > covered)
            return FAIL_TENSOR(tensor,
                               "begins at byte %zu of the data, which leaves a hole from %zu",
                               begin, covered);
        covered = begin + tensor->bytes;
        previous = tensor->name;
    }
    if (covered != data->bytes)
        return MOERT_FAIL(ERROR_FORMAT,
                          "%s: holds %zu bytes of data, but its tensors end at byte %zu",
                          data->path, data->bytes, covered);
    qsort(shard->tensors, shard->count, sizeof *shard->tensors, moert_compare_names);
    return MOERT_OK;
}

moert_status moert_shard_open(const char *path, moert_shard *shard) {
    moert_status status = MOERT_OK;
    size_t bytes = 0;
    json_t *header = NULL;
    memset(shard, 0, sizeof *shard);
    shard->path = strdup(path);
    if (shard->path == NULL)
        return MOERT_FAIL(ERROR_MEMORY, "%s: no memory for its path", path);
    MOERT_TRY_OR(close_shard, map_file(path, shard));
    MOERT_TRY_OR(close_shard, header_bytes(shard, &bytes));
    const char *text = (const char *)shard->map + MOERT_HEADER_PREFIX_BYTES;
    MOERT_TRY_OR(close_shard, moert_json_parse(path, "the header", text, bytes, &header));
    data_part data = {path, (const unsigned char *)text + bytes,
                      shard->map_bytes - MOERT_HEADER_PREFIX_BYTES - bytes};
    MOERT_TRY_OR(free_header, read_entries(&data, header, shard));
    MOERT_TRY_OR(free_header, check_coverage(&data, shard));
free_header:
    json_decref(header);
close_shard:
    if (status != MOERT_OK)
        moert_shard_close(shard);
    return status;
}

void moert_shard_close(moert_shard *shard) {
    if (shard->map != NULL)
        munmap(shard->map, shard->map_bytes);
    MOERT_FREE(shard->tensors, shard->names, shard->path);
    memset(shard, 0, sizeof *shard);
}

const moert_tensor *moert_shard_find(const moert_shard *shard, const char *name) {
    const moert_tensor key = {.name = name};
    return bsearch(&key, shard->tensors, shard->count, sizeof *shard->tensors, moert_compare_names);
}
