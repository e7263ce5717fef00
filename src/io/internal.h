/* A mapped file, and the functions that the files of src/io share. */
#pragma once

#include "io/json.h"
#include "io/safetensors.h"

/* The bytes of the header's length at the start of a file, and the limit of that length. */
enum { MOERT_HEADER_PREFIX_BYTES = 8, MOERT_HEADER_LIMIT_BYTES = 100000000 };

/* One mapped .safetensors file. */
typedef struct moert_shard {
    char *path;
    void *map;
    size_t map_bytes;
    char *names;           /* storage of all tensor names */
    moert_tensor *tensors; /* [count], ascending by name */
    size_t count;
} moert_shard;

/* Maps and validates one file. On failure the shard is empty. */
moert_status moert_shard_open(const char *path, moert_shard *shard);
void moert_shard_close(moert_shard *shard);
const moert_tensor *moert_shard_find(const moert_shard *shard, const char *name);

/* elements = the product of the shape, bytes = the elements' bytes in this type; false on
 * overflow. */
bool moert_shape_size(moert_file_type type, size_t rank, const size_t *shape, size_t *elements,
                      size_t *bytes);

/* Writes "[96, 64]" to `text` and returns it. */
enum { MOERT_SHAPE_TEXT_BYTES = 24 * MOERT_FILE_MAX_RANK };
const char *moert_shape_text(size_t rank, const size_t *shape, char text[MOERT_SHAPE_TEXT_BYTES]);

/* ERROR_USAGE unless [first, first + count) is within the `elements` of tensor `name` of `file`. */
moert_status moert_check_elements(const char *file, const char *name, size_t elements, size_t first,
                                  size_t count);

/* Compares structs whose first field is a string, by that string. */
int moert_compare_names(const void *left, const void *right);
/* Compares two tensors of one file by their offsets in the file. */
int moert_compare_positions(const void *left, const void *right);
