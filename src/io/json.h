/*
 * JSON objects: parsed with one message for a malformed one, and written whole.
 *
 * jansson's calls that build a value return NULL or -1 without memory, and a value that was not made
 * would be missing from the text. So programs let jansson allocate by a function that notes a failure,
 * and no text is made after one.
 */
#pragma once

#include <jansson.h>

#include "base/error.h"

/* From now on jansson allocates by `allocate`, such as malloc, and frees by free(). For programs,
 * before any other call. */
void moert_json_watch(void *(*allocate)(size_t bytes));
/* ERROR_MEMORY if an allocation of jansson has failed since then, else MOERT_OK: what a failed call
 * of jansson means besides bad input. `path` starts the message. */
moert_status moert_json_memory(const char *path);

/* *text = the JSON of `root`, by jansson's flags; the caller frees it. `path` starts the message.
 * Errors: ERROR_MEMORY (also for a root that is NULL, and if any allocation of jansson has
 * failed). */
moert_status moert_json_text(const char *path, const json_t *root, size_t flags, char **text);

/* Makes `path` hold this text, as moert_durable_write() does. Errors: those of both. */
moert_status moert_json_write(const char *path, const json_t *root, size_t flags);

/* Parses text[bytes] as a JSON object without duplicate keys; the caller calls json_decref.
 * Messages start with `path` and `what`. Errors: ERROR_FORMAT. */
moert_status moert_json_parse(const char *path, const char *what, const char *text, size_t bytes,
                              json_t **object);
/* The same for a file of at most `limit_bytes`. Errors: ERROR_FORMAT, ERROR_IO, ERROR_MEMORY. */
moert_status moert_json_read(const char *path, const char *what, size_t limit_bytes,
                             json_t **object);
