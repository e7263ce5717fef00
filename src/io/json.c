/* Parses and writes JSON objects. */
#include "io/json.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "io/durable.h"

static void *(*allocate)(size_t bytes);
static atomic_bool failed;

static void *note_failure(size_t bytes) {
    void *memory = allocate(bytes);
    if (memory == NULL)
        failed = true;
    return memory;
}

void moert_json_watch(void *(*with)(size_t bytes)) {
    allocate = with;
    failed = false;
    json_set_alloc_funcs(note_failure, free);
}

static moert_status no_memory(const char *path) {
    return MOERT_FAIL(ERROR_MEMORY, "%s: no memory for its JSON", path);
}

moert_status moert_json_memory(const char *path) {
    return failed ? no_memory(path) : MOERT_OK;
}

moert_status moert_json_text(const char *path, const json_t *root, size_t flags, char **text) {
    char *made = json_dumps(root, flags);
    if (made == NULL || failed) {
        free(made);
        return no_memory(path);
    }
    *text = made;
    return MOERT_OK;
}

moert_status moert_json_write(const char *path, const json_t *root, size_t flags) {
    char *text;
    MOERT_TRY(moert_json_text(path, root, flags, &text));
    const moert_status status = moert_durable_write(path, text);
    free(text);
    return status;
}

moert_status moert_json_write_new(const char *directory, const char *name, json_t *root,
                                  size_t flags) {
    char *path;
    moert_status status = moert_text_path(&path, "%s/%s", directory, name);
    if (status == MOERT_OK) {
        status = moert_json_write(path, root, flags);
        free(path);
    }
    json_decref(root);
    return status;
}

moert_status moert_json_parse(const char *path, const char *what, const char *text, size_t bytes,
                              json_t **object) {
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        MOERT_TRY(moert_json_memory(path));
        return MOERT_FAIL(ERROR_FORMAT, "%s: %s is not valid JSON: %s (line %d, byte %d)", path,
                          what, error.text, error.line, error.position);
    }
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
