/*
 * Log lines on stderr. A level is defined by its volume:
 *   error  the call fails            warn   works, but not as asked     info   a few lines per run
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

/* Every line is marked with the rank from now on; lines at info are written by rank 0 only, unless
 * at debug. */
void moert_log_set_rank(int rank, int size);
/* 1 on rank 0: for warnings that all ranks would give alike. */
int moert_log_is_first(void);
