/* Small helpers for strings. */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

int moert_text_ends_with(const char *text, const char *ending) {
    size_t length = strlen(text), tail = strlen(ending);
    return length >= tail && strcmp(text + length - tail, ending) == 0;
}
