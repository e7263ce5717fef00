/* Element types and shapes of tensors in files. */
#include <stdio.h>
#include <string.h>

#include "io/internal.h"

static const struct {
    const char *text;
    size_t bytes;
} types[] = {
#define FILE_TYPE_ROW(name, text, bytes) {text, bytes},
    MOERT_FILE_TYPE_TABLE(FILE_TYPE_ROW)
#undef FILE_TYPE_ROW
};

const char *moert_file_type_text(moert_file_type type) {
    return types[type].text;
}

size_t moert_file_type_bytes(moert_file_type type) {
    return types[type].bytes;
}

bool moert_shape_size(moert_file_type type, size_t rank, const size_t *shape, size_t *elements,
                      size_t *bytes) {
    size_t product = 1;
    for (size_t i = 0; i < rank; i++)
        if (__builtin_mul_overflow(product, shape[i], &product))
            return false;
    *elements = product;
    return !__builtin_mul_overflow(product, types[type].bytes, bytes);
}

const char *moert_shape_text(size_t rank, const size_t *shape, char text[MOERT_SHAPE_TEXT_BYTES]) {
    size_t length = 0;
    text[length++] = '[';
    for (size_t i = 0; i < rank && i < MOERT_FILE_MAX_RANK; i++)
        length += (size_t)snprintf(text + length, MOERT_SHAPE_TEXT_BYTES - length, "%s%zu",
                                   i > 0 ? ", " : "", shape[i]);
    text[length++] = ']';
    text[length] = '\0';
    return text;
}

moert_status moert_check_elements(const char *file, const char *name, size_t elements, size_t first,
                                  size_t count) {
    if (first > elements || count > elements - first)
        return MOERT_FAIL(ERROR_USAGE,
                          "%s: tensor '%.200s': %zu elements from element %zu on exceed the "
                          "tensor's %zu elements",
                          file, name, count, first, elements);
    return MOERT_OK;
}

int moert_compare_names(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}
