/* Status names and the last error of each thread. */
#include "base/error.h"
#include "base/memory.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

static _Thread_local char last_error[1024];

static const struct {
    const char *name, *text;
} status_rows[] = {
#define MOERT_STATUS_ROW(name, text) {"MOERT_" #name, text},
    MOERT_STATUS_TABLE(MOERT_STATUS_ROW)
#undef MOERT_STATUS_ROW
};

static size_t status_row(moert_status status) {
    size_t count = MOERT_COUNT(status_rows);
    return (size_t)status < count ? (size_t)status : (size_t)MOERT_ERROR_INTERNAL;
}

const char *moert_status_name(moert_status status) {
    return status_rows[status_row(status)].name;
}

const char *moert_status_text(moert_status status) {
    return status_rows[status_row(status)].text;
}

const char *moert_last_error(void) {
    return last_error;
}

void moert_error_set(const char *text) {
    snprintf(last_error, sizeof last_error, "%s", text);
}

char *moert_error_keep(void) {
    return strdup(last_error);
}

moert_status moert_error_first(char *kept, moert_status status, moert_status cleanup) {
    if (status != MOERT_OK && kept != NULL)
        moert_error_set(kept);
    free(kept);
    return status != MOERT_OK ? status : cleanup;
}

moert_status moert_error_record(moert_status code, const char *function, int line,
                                const char *format, ...) {
    char text[sizeof last_error]; /* a separate array, since the arguments may point into
                                     last_error */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    moert_error_set(text);
    MOERT_DEBUG("error %s is raised by %s:%d: %s", moert_status_name(code), function, line, text);
    return code;
}

moert_status moert_error_pass(moert_status code, const char *function, int line) {
    MOERT_DEBUG("error %s is passed on by %s:%d", moert_status_name(code), function, line);
    return code;
}
