/*
 * Log lines on stderr. A level is defined by its volume:
 *   error  the call fails            warn   works, but not as requested  info   a few lines per run
 *   debug  a few lines per step      trace  every operation
 */
#pragma once

typedef enum moert_log_level {
    MOERT_LOG_ERROR,
    MOERT_LOG_WARN,
    MOERT_LOG_INFO,
    MOERT_LOG_DEBUG,
    MOERT_LOG_TRACE
} moert_log_level;

#define MOERT_LOG(level, ...)                                                                      \
    do {                                                                                           \
        if (moert_log_enabled(MOERT_LOG_##level))                                                  \
            moert_log_write(MOERT_LOG_##level, __VA_ARGS__);                                       \
    } while (0)
#define MOERT_WARN(...)  MOERT_LOG(WARN, __VA_ARGS__)
#define MOERT_INFO(...)  MOERT_LOG(INFO, __VA_ARGS__)
#define MOERT_DEBUG(...) MOERT_LOG(DEBUG, __VA_ARGS__)
#define MOERT_TRACE(...) MOERT_LOG(TRACE, __VA_ARGS__)

int moert_log_enabled(moert_log_level level);
void moert_log_write(moert_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Log lines go to sink(user, level, line) instead of stderr, without the final newline; NULL: to
 * stderr again. The sink applies to the whole process. */
typedef void moert_log_sink(void *user, int level, const char *line);
void moert_log_set_sink(moert_log_sink *sink, void *user);

/* From now on, lines of jobs with several ranks name the rank. Only rank 0 writes lines at level
 * info, unless the limit is debug or higher. */
void moert_log_set_rank(int rank, int size);
/* 1 on rank 0: for warnings that would be the same on all ranks. */
int moert_log_is_first(void);
