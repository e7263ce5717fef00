/* Kernel files, and the source of programs. */
#pragma once

#include "base/error.h"

/* *text = a kernel file, built in or from MOERT_KERNEL_DIR; the caller frees it. */
moert_status moert_kernel_source(const char *file, char **text);

/* *source = the source of the program "family -Doption ...": lib/common.h, then the family with its
 * includes. The caller frees it. */
moert_status moert_program_source(const char *spec, char **source);
