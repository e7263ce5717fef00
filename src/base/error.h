/*
 * Recording errors and passing them on.
 *
 * MOERT_FAIL is used where a failure is first detected: it records the message and yields the code.
 * MOERT_TRY and MOERT_TRY_OR pass a failure up; at debug level, each logs the function and the line
 * where the failed call stands.
 */
#pragma once

#include "moert/status.h"

/* Records the message of a failure and returns `code`; use as `return MOERT_FAIL(ERROR_IO, "...",
 * ...)`. */
#define MOERT_FAIL(code, ...) moert_error_record(MOERT_##code, __func__, __LINE__, __VA_ARGS__)

#define MOERT_TRY(call)                                                                            \
    do {                                                                                           \
        moert_status try_status_ = (call);                                                         \
        if (try_status_ != MOERT_OK)                                                               \
            return moert_error_pass(try_status_, __func__, __LINE__);                              \
    } while (0)

/* Like MOERT_TRY with cleanup: stores the failure in the local `status` and jumps to `label`. */
#define MOERT_TRY_OR(label, call)                                                                  \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != MOERT_OK) {                                                                  \
            moert_error_pass(status, __func__, __LINE__);                                          \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

/* Checks an argument of a public function: MOERT_REQUIRE(layer) returns ERROR_USAGE if the pointer
 * is NULL. */
#define MOERT_REQUIRE(pointer)                                                                     \
    do {                                                                                           \
        if ((pointer) == NULL)                                                                     \
            return MOERT_FAIL(ERROR_USAGE, "%s: %s is NULL", __func__, #pointer);                  \
    } while (0)

/* Combines the status of two calls that were both made: the first failure, or MOERT_OK. */
static inline moert_status moert_first(moert_status status, moert_status later) {
    return status != MOERT_OK ? status : later;
}

moert_status moert_error_record(moert_status code, const char *function, int line,
                                const char *format, ...) __attribute__((format(printf, 4, 5)));
moert_status moert_error_pass(moert_status code, const char *function, int line);

/* Sets the last error's text without logging (for a failure that another rank reported). */
void moert_error_set(const char *text);

/* Copies the last error's text, so that failures of the cleanup do not replace it. The caller frees
 * the copy, which may be NULL. */
char *moert_error_keep(void);
/* Returns `status` and restores the last error's text from `kept`, or returns `cleanup` if `status`
 * is MOERT_OK. Frees `kept`, which may be NULL. */
moert_status moert_error_first(char *kept, moert_status status, moert_status cleanup);
