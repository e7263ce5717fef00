/* Small helpers for strings. */
#include "base/text.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

size_t moert_text_distance(const char *a, const char *b) {
    enum { LIMIT = 64 };
    size_t row[LIMIT + 1], length = strlen(b);
    if (length > LIMIT)
        length = LIMIT;
    for (size_t j = 0; j <= length; j++)
        row[j] = j;
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < length; j++) {
            size_t replace = diagonal + (a[i] != b[j]);
            size_t insert = (row[j] < row[j + 1] ? row[j] : row[j + 1]) + 1;
            diagonal = row[j + 1];
            row[j + 1] = replace < insert ? replace : insert;
        }
    }
    return row[length];
}

char *moert_text_format_list(const char *format, va_list arguments) {
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    char *text = length >= 0 ? malloc((size_t)length + 1) : NULL;
    if (text != NULL)
        vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    return text;
}

char *moert_text_format(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *text = moert_text_format_list(format, arguments);
    va_end(arguments);
    return text;
}

moert_status moert_text_path(char **path, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    *path = moert_text_format_list(format, arguments);
    va_end(arguments);
    return *path != NULL ? MOERT_OK : MOERT_FAIL(ERROR_MEMORY, "no room for a path");
}

/* The write function for fopencookie(): appends the stream's buffered bytes to the text. Returns 0
 * on failure. */
static ssize_t append(void *object, const char *data, size_t bytes) {
    moert_text_stream *stream = object;
    if (stream->failed ||
        MOERT_GROW(&stream->text, &stream->room, stream->bytes + bytes + 1) != MOERT_OK) {
        stream->failed = true;
        errno = ENOMEM;
        return 0;
    }
    memcpy(stream->text + stream->bytes, data, bytes);
    stream->bytes += bytes;
    return (ssize_t)bytes;
}

moert_status moert_text_open(const char *what, moert_text_stream *stream) {
    *stream = (moert_text_stream){.what = what};
    if (MOERT_GROW(&stream->text, &stream->room, 1) == MOERT_OK)
        stream->file = fopencookie(stream, "w", (cookie_io_functions_t){.write = append});
    if (stream->file != NULL)
        return MOERT_OK;
    MOERT_FREE(stream->text);
    stream->text = NULL;
    return MOERT_FAIL(ERROR_MEMORY, "no memory for %s", what);
}

moert_status moert_text_close(moert_text_stream *stream) {
    const bool failed = ferror(stream->file) != 0;
    if (fclose(stream->file) == 0 && !failed && !stream->failed)
        return MOERT_OK;
    MOERT_FREE(stream->text);
    stream->text = NULL;
    return MOERT_FAIL(ERROR_MEMORY, "no memory for %s", stream->what);
}

static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
enum { UNITS = sizeof units / sizeof units[0] };

void moert_text_put_bytes(double bytes, char text[MOERT_TEXT_BYTES_SIZE]) {
    size_t unit = 0;
    for (; bytes >= 1024.0 && unit + 1 < UNITS; unit++)
        bytes /= 1024.0;
    snprintf(text, MOERT_TEXT_BYTES_SIZE, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
}

moert_status moert_text_get_bytes(const char *text, const char *what, size_t *bytes) {
    char *end;
    double value = strtod(text, &end);
    const bool number = end != text;
    end += strspn(end, " ");
    for (size_t unit = 1; unit < UNITS && *end != '\0'; unit++)
        if (strncmp(end, units[unit], strlen(end)) == 0) {
            value *= ldexp(1.0, 10 * (int)unit);
            end += strlen(end);
        }
    if (!number || *end != '\0' || !(value >= 1.0) || value >= 9.2e18)
        return MOERT_FAIL(
            ERROR_USAGE, "%s %s: expected a number of bytes, or one with K, M, G or T, such as 80G",
            what, text);
    *bytes = (size_t)value;
    return MOERT_OK;
}

int moert_text_ends_with(const char *text, const char *ending) {
    size_t length = strlen(text), tail = strlen(ending);
    return length >= tail && strcmp(text + length - tail, ending) == 0;
}

/* The bytes of the UTF-8 character at `at`, or 0 if there is none. */
static size_t character_bytes(const unsigned char *at) {
    static const struct {
        unsigned char mask, head;
        uint32_t least;
    } forms[] = {{0x80, 0x00, 0}, {0xE0, 0xC0, 0x80}, {0xF0, 0xE0, 0x800}, {0xF8, 0xF0, 0x10000}};
    for (size_t more = 0; more < MOERT_COUNT(forms); more++) {
        if ((at[0] & forms[more].mask) != forms[more].head)
            continue;
        uint32_t code = at[0] & (unsigned char)~forms[more].mask;
        for (size_t i = 1; i <= more; i++) {
            if ((at[i] & 0xC0) != 0x80)
                return 0;
            code = code << 6 | (at[i] & 0x3F);
        }
        const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
        return code >= forms[more].least && code <= 0x10FFFF && !surrogate ? more + 1 : 0;
    }
    return 0;
}

moert_status moert_text_encode(const char *text, char **encoded) {
    char *to;
    MOERT_TRY(moert_alloc(encoded, 3 * strlen(text) + 1, 1));
    to = *encoded;
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0';) {
        const size_t bytes = character_bytes(at);
        if (bytes == 0 || *at < 32 || strchr("\"\\%\x7f", *at) != NULL) {
            to += sprintf(to, "%%%02X", *at++);
            continue;
        }
        memcpy(to, at, bytes);
        to += bytes;
        at += bytes;
    }
    *to = '\0';
    return MOERT_OK;
}
