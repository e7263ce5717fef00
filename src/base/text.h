/* Small helpers for strings. */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

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

/*
 * A stream whose text is in memory. Closing the stream reports a write that failed for lack of
 * memory. After open_memstream, neither fclose() nor ferror() of the C library reports such a
 * failure.
 *
 *     MOERT_TRY(moert_text_open("a list", &list));
 *     fprintf(list.file, ...);
 *     MOERT_TRY(moert_text_close(&list)); then free(list.text)
 */
typedef struct moert_text_stream {
    FILE *file;       /* to write to */
    char *text;       /* what was written, then a 0 byte; complete when the stream is closed */
    size_t bytes;     /* without that byte */
    const char *what; /* for the message */
    size_t room;
    bool failed;
} moert_text_stream;

/* The stream must not move before it is closed. Errors: ERROR_MEMORY. */
moert_status moert_text_open(const char *what, moert_text_stream *stream);
/* Closes the stream. ERROR_MEMORY if a write has failed; the text is then freed and NULL. */
moert_status moert_text_close(moert_text_stream *stream);

/* *encoded = `text` as UTF-8 that needs no escapes in JSON; the caller frees it. Bytes that are not
 * UTF-8, control characters, quotes, backslashes and % become %NN. Different texts get different
 * encodings. Errors: ERROR_MEMORY. */
moert_status moert_text_encode(const char *text, char **encoded);
/* Writes bytes as "1.5 GiB". */
enum { MOERT_TEXT_BYTES_SIZE = 32 };
void moert_text_put_bytes(double bytes, char text[MOERT_TEXT_BYTES_SIZE]);
/* Reads "80G" or "1.5 GiB": a number of bytes, KiB, MiB, GiB or TiB. ERROR_USAGE names `what`. */
moert_status moert_text_get_bytes(const char *text, const char *what, size_t *bytes);

/* 1 if `text` ends with `ending`. */
int moert_text_ends_with(const char *text, const char *ending);
