/* moert-info --check: compares the files of a run or a model with their checksums. */
#pragma once

#include "base/error.h"

/*
 * Checks `directory`, or its checkpoints and its model, and prints one line for each. Not
 * collective. Errors: ERROR_FORMAT (something is damaged, after all lines), ERROR_USAGE (there is
 * nothing to check), ERROR_IO, ERROR_MEMORY.
 */
moert_status moert_info_check(const char *directory);
