/* What the files of this module share: one mapped file. */
#pragma once

#include "io/json.h"
#include "io/safetensors.h"

/* A file begins with the header's length in this many bytes, and the header has a limit. */
enum { MOERT_HEADER_PREFIX_BYTES = 8, MOERT_HEADER_LIMIT_BYTES = 100000000 };

/* One mapped .safetensors file. */
typedef struct moert_shard {
    char *path;
    void *map;
    size_t map_bytes;
    char *names;           /* the texts of all tensor names */
    moert_tensor *tensors; /* [count], ascending by name */
    size_t count;
    json_t *metadata; /* NULL if the file has none */
} moert_shard;

/* Maps and validates one file. On failure the shard is empty. */
moert_status moert_shard_open(const char *path, moert_shard *shard);
void moert_shard_close(moert_shard *shard);
const moert_tensor *moert_shard_find(const moert_shard *shard, const char *name);

/* elements = the product of the shape, bytes = elements in this type; false on overflow. */
bool moert_shape_size(moert_file_type type, size_t rank, const size_t *shape, size_t *elements,
                      size_t *bytes);

/* "[96, 64]" into text, which is returned. */
enum { MOERT_SHAPE_TEXT_BYTES = 24 * MOERT_FILE_MAX_RANK };
const char *moert_shape_text(size_t rank, const size_t *shape, char text[MOERT_SHAPE_TEXT_BYTES]);

/* ERROR_USAGE unless elements [first, first + count) are within those of a tensor of `file`. */
moert_status moert_check_elements(const char *file, const char *name, size_t elements, size_t first,
                                  size_t count);

/* Orders structs that begin with a text, such as their name, by it. */
int moert_compare_names(const void *left, const void *right);
