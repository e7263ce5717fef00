/* Describes token sources. */
#pragma once

#include "tools/common/options.h"

/*
 * Prints what the source that `paths` name holds (moert_source_open), as text or as one JSON
 * object. With `documents`, not NULL, writes every document to that file as a JSON array of tokens,
 * one a line. Errors: those of moert_source_open and moert_source_read, ERROR_IO.
 */
moert_status moert_info_data(const moert_option_list *paths, unsigned bits, const char *documents,
                             bool as_json);
