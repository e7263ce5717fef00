/* Helpers for open files. */
#pragma once

#include <stddef.h>

/* Closes each file that is not -1, and sets it to -1. */
void moert_close_files(int *files, size_t count);
