/* Describes token sources. */
#pragma once

#include "tools/common/options.h"

/*
 * Prints the properties of the token source `paths` (moert_source_open), as text or as one JSON
 * object. Unless `documents` is NULL, writes every document to that file: one line each, a JSON
 * array of tokens. Errors: those of moert_source_open and moert_source_read, ERROR_IO.
 */
moert_status moert_info_data(const moert_option_list *paths, unsigned bits, const char *documents,
                             bool as_json);
