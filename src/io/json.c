/* Parses JSON objects, with one message for a malformed one. */
#include "io/json.h"

#include <stdlib.h>
#include <string.h>

#include "io/durable.h"

moert_status moert_json_parse(const char *path, const char *what, const char *text, size_t bytes,
                              json_t **object) {
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL)
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is not valid JSON: %s (line %d, byte %d)", path,
                          what, error.text, error.line, error.position);
    if (!json_is_object(root)) {
        json_decref(root);
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is JSON, but not an object { ... }", path, what);
    }
    *object = root;
    return MOERT_OK;
}

moert_status moert_json_read(const char *path, const char *what, size_t limit_bytes,
                             json_t **object) {
    char *text;
    MOERT_TRY(moert_read_text(path, limit_bytes, &text));
    const moert_status status = moert_json_parse(path, what, text, strlen(text), object);
    free(text);
    return status;
}
