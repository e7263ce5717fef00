/*
 * Status codes, the last error's text, and the initialisers of structs.
 *
 * Every moert function that can fail returns a moert_status; MOERT_OK is zero. The function that
 * first detects a failure records one message. moert_last_error() returns this message until the
 * next failure on the same thread. For an argument that must not be NULL, or a number out of range,
 * functions return ERROR_USAGE, and the message names the argument. Functions that return no status
 * then return 0 or NULL. The library never exits, aborts or prints to stdout, except that the
 * watchdog (MOERT_TIMEOUT_S, see context.h) ends a job with a dead, stopped or late rank.
 */
#ifndef MOERT_STATUS_H
#define MOERT_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define MOERT_API __attribute__((visibility("default")))
#else
#define MOERT_API
#endif

/*
 * Structs that start with `size` grow at their end from version to version. Their initialisers set
 * `size` and the defaults. A program built with older headers passes a smaller size, and gets the
 * defaults of the fields that it does not know. A struct inside another one does not grow.
 *
 * Initialisers are MOERT_INIT(type, name, MOERT_SET(name, field, value) ...), with any name; all
 * other fields are 0.
 */
#ifdef __cplusplus
#define MOERT_INIT(type, name, ...)                                                                \
    ([] {                                                                                          \
        type name = type();                                                                        \
        name.size = sizeof(type);                                                                  \
        __VA_ARGS__                                                                                \
        return name;                                                                               \
    }())
#define MOERT_SET(name, field, ...) name.field = __VA_ARGS__;
#else
#define MOERT_INIT(type, name, ...)                                                                \
    { .size = sizeof(type), __VA_ARGS__ }
#define MOERT_SET(name, field, ...) .field = __VA_ARGS__,
#endif

/* X(name, text): one row per status. */
#define MOERT_STATUS_TABLE(X)                                                                      \
    X(OK, "success")                                                                               \
    X(ERROR_USAGE, "bad option, variable or argument")                                             \
    X(ERROR_MEMORY, "out of memory")                                                               \
    X(ERROR_DEVICE, "OpenCL error or no device")                                                   \
    X(ERROR_COMM, "MPI error")                                                                     \
    X(ERROR_TOPOLOGY, "hwloc or binding error")                                                    \
    X(ERROR_IO, "file cannot be read or written")                                                  \
    X(ERROR_FORMAT, "file content is malformed")                                                   \
    X(ERROR_MISMATCH, "inputs do not belong together")                                             \
    X(ERROR_UNSUPPORTED, "not supported here")                                                     \
    X(ERROR_NUMERIC, "non-finite number")                                                          \
    X(ERROR_TIMEOUT, "a rank is dead, stopped or late")                                            \
    X(ERROR_INTERNAL, "a bug in moert")                                                            \
    X(ERROR_HARDWARE, "a device computes wrong bits")

typedef enum moert_status {
#define MOERT_STATUS_ENUM(name, text) MOERT_##name,
    MOERT_STATUS_TABLE(MOERT_STATUS_ENUM)
#undef MOERT_STATUS_ENUM
} moert_status;

/* Symbolic name of a status, such as "MOERT_ERROR_IO"; never NULL. */
MOERT_API const char *moert_status_name(moert_status status);

/* A short description of the status; never NULL. */
MOERT_API const char *moert_status_text(moert_status status);

/* The message of this thread's last failure: the problem, the place, the value and the limit. Valid
 * until the next failure; "" before the first. */
MOERT_API const char *moert_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
