/*
 * Parses and writes JSON. A malformed object gives one error message. A text is written whole or
 * not at all.
 *
 * When memory runs out, jansson's calls that build a value return NULL or -1. The value would then
 * be missing from the text. So programs let jansson allocate through a function that records
 * failures (moert_json_watch). After a failed allocation moert_json_text makes no text.
 */
#pragma once

#include <jansson.h>

#include "base/error.h"

/* From now on jansson allocates by `allocate`, such as malloc, and frees by free(). Programs call
 * this before any other function. */
void moert_json_watch(void *(*allocate)(size_t bytes));
/* ERROR_MEMORY if an allocation of jansson has failed since moert_json_watch, else MOERT_OK. Tells
 * whether a failed jansson call means bad input or a lack of memory. `path` starts the message. */
moert_status moert_json_memory(const char *path);

/* *text = the JSON of `root`, by jansson's flags; the caller frees it. `path` starts the message.
 * Errors: ERROR_MEMORY (also if `root` is NULL, or any allocation of jansson has failed). */
moert_status moert_json_text(const char *path, const json_t *root, size_t flags, char **text);

/* Writes the JSON of `root` to `path`. Errors: those of moert_json_text and moert_durable_write. */
moert_status moert_json_write(const char *path, const json_t *root, size_t flags);
/* Like moert_json_write, for DIRECTORY/name. Releases `root`, also after a failure. */
moert_status moert_json_write_new(const char *directory, const char *name, json_t *root,
                                  size_t flags);

/* Parses text[bytes] as a JSON object without duplicate keys; the caller calls json_decref.
 * Messages start with `path` and `what`. Errors: ERROR_FORMAT, ERROR_MEMORY. */
moert_status moert_json_parse(const char *path, const char *what, const char *text, size_t bytes,
                              json_t **object);
/* Like moert_json_parse, for a file of at most `limit_bytes`. Errors: ERROR_FORMAT, ERROR_IO,
 * ERROR_MEMORY. */
moert_status moert_json_read(const char *path, const char *what, size_t limit_bytes,
                             json_t **object);
