/* JSON objects from text, with one clear message when they are malformed. */
#pragma once

#include <jansson.h>

#include "base/error.h"

/* Parses text[bytes] as a JSON object without duplicate keys, to be given to json_decref; `what`
 * and `path` open the message. Errors: ERROR_FORMAT. */
moert_status moert_json_parse(const char *path, const char *what, const char *text, size_t bytes,
                              json_t **object);
/* The same of a whole file of at most `limit_bytes`. Errors: ERROR_IO and ERROR_MEMORY too. */
moert_status moert_json_read(const char *path, const char *what, size_t limit_bytes,
                             json_t **object);
