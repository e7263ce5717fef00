/* Options structs whose `size` tells the version of the caller's headers (moert/status.h). */
#pragma once

#include <stddef.h>

#include "base/error.h"

/*
 * MOERT_OPTIONS_TAKE(moert_cast, MOERT_CAST_INIT, &taken, given): taken = the fields that the
 * struct `given` has, and the defaults of the other fields. Errors: ERROR_USAGE (`given` is NULL,
 * or no header version up to this one has a struct of that size).
 */
#define MOERT_OPTIONS_TAKE(type, INITIALISER, taken, given)                                        \
    (*(taken) = (type)INITIALISER,                                                                 \
     moert_options_take((taken), sizeof(type), (given), #type, #INITIALISER))
moert_status moert_options_take(void *taken, size_t bytes, const void *given, const char *type,
                                const char *initialiser);
