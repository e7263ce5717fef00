/* Small helpers for strings. */
#pragma once

#include <stdarg.h>
#include <stddef.h>

#include "base/error.h"

/* Edit distance of two names (insert, delete, replace), for "did you mean". */
size_t moert_text_distance(const char *a, const char *b);

/* A new string in printf's format, which the caller frees; NULL if memory runs out. */
char *moert_text_format(const char *format, ...) __attribute__((format(printf, 1, 2)));
char *moert_text_format_list(const char *format, va_list arguments)
    __attribute__((format(printf, 1, 0)));

/* Sets *path to a new string in printf's format, or returns ERROR_MEMORY. */
moert_status moert_text_path(char **path, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* *encoded = `text` as UTF-8 that JSON takes as it is, which the caller frees: %NN stands for each
 * byte of no UTF-8, control character, quote, backslash and %. Different texts stay different.
 * Errors: ERROR_MEMORY. */
moert_status moert_text_encode(const char *text, char **encoded);
/* Writes bytes as "1.5 GiB". */
enum { MOERT_TEXT_BYTES_SIZE = 32 };
void moert_text_put_bytes(double bytes, char text[MOERT_TEXT_BYTES_SIZE]);
/* Reads "80G" or "1.5 GiB": a number of bytes, KiB, MiB, GiB or TiB. ERROR_USAGE names `what`. */
moert_status moert_text_get_bytes(const char *text, const char *what, size_t *bytes);

/* 1 if `text` ends with `ending`. */
int moert_text_ends_with(const char *text, const char *ending);
