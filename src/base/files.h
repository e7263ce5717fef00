/* Open files. */
#ifndef MOERT_BASE_FILES_H
#define MOERT_BASE_FILES_H

#include <stddef.h>

/* Closes those that are not -1, and makes them -1. */
void moert_close_files(int *files, size_t count);

#endif
