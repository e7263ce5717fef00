/* moert-info --check: compares the files of a run or a model with their checksums. */
#pragma once

#include "base/error.h"

/* Checks the files in `directory` if it has a manifest.json, otherwise the checkpoints and the
 * model in `directory`. Prints one line for each directory of files. Not collective. Errors:
 * ERROR_FORMAT (a file is damaged; returned after all lines are printed), ERROR_USAGE (there is
 * nothing to check), ERROR_IO, ERROR_MEMORY. */
moert_status moert_info_check(const char *directory);
