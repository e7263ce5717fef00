/* Log lines on stderr. Each line is one write, so that lines of several ranks do not mix. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/config.h"

static int log_rank, log_size = 1;
static moert_log_sink *log_sink;
static void *sink_user;

void moert_log_set_sink(moert_log_sink *sink, void *user) {
    sink_user = user;
    log_sink = sink;
}

void moert_log_set_rank(int rank, int size) {
    log_rank = rank;
    log_size = size;
}

int moert_log_is_first(void) {
    return log_rank == 0;
}

int moert_log_enabled(moert_log_level level) {
    moert_log_level limit = (moert_log_level)moert_config_get()->log_level;
    if (level == MOERT_LOG_INFO && log_rank != 0 && limit < MOERT_LOG_DEBUG)
        return 0;
    return level <= limit;
}

void moert_log_write(moert_log_level level, const char *format, ...) {
    static const char *const names[] = {"error", "warning", "info", "debug", "trace"};
    char line[1200];
    int length = log_size > 1
                     ? snprintf(line, sizeof line, "moert [%d] %s: ", log_rank, names[level])
                     : snprintf(line, sizeof line, "moert %s: ", names[level]);
    va_list arguments;
    va_start(arguments, format);
    int body = vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
    va_end(arguments);
    length += body < 0 ? 0 : body;
    if (length > (int)sizeof line - 2)
        length = (int)sizeof line - 2;
    if (log_sink != NULL) {
        line[length] = '\0';
        log_sink(sink_user, (int)level, line);
        return;
    }
    line[length] = '\n';
    fwrite(line, 1, (size_t)length + 1, stderr);
}
