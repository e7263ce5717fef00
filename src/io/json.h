/* Parses JSON objects, with one message for a malformed one. */
#pragma once

#include <jansson.h>

#include "base/error.h"

/* Parses text[bytes] as a JSON object without duplicate keys; the caller calls json_decref.
 * Messages start with `path` and `what`. Errors: ERROR_FORMAT. */
moert_status moert_json_parse(const char *path, const char *what, const char *text, size_t bytes,
                              json_t **object);
/* The same for a file of at most `limit_bytes`. Errors: ERROR_FORMAT, ERROR_IO, ERROR_MEMORY. */
moert_status moert_json_read(const char *path, const char *what, size_t limit_bytes,
                             json_t **object);
