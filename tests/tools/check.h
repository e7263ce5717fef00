/* Ends a tool of the end-to-end tests if a call fails: prints the library's message and exits with
 * code 1. */
#pragma once

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

static inline void check(moert_status status) {
    if (status == MOERT_OK)
        return;
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, moert_last_error());
    exit(1);
}
