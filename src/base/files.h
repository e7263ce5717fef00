/* Open files. */
#pragma once

#include <stddef.h>

/* Closes those that are not -1, and makes them -1. */
void moert_close_files(int *files, size_t count);
