/* Prints, collects and writes the rows of a bench; reads the machine's name. */
#include "bench/common/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "base/config.h"
#include "io/json.h"

/* A column, parsed; `next` is the text of the next column, or NULL. */
typedef struct column {
    char key[24], format[16], title[24], type;
    const char *next;
    int gap, width, digits;
    bool optional, printed;
} column;

static column parse(const char *at) {
    column c = {.gap = (int)strspn(at, " "), .next = strchr(at, ',')};
    const int found = sscanf(at, " %23[^ ] %15[^ ,] %23[^,]", c.key, c.format, c.title);
    char *end = c.format + strlen(c.format) - 1;
    c.next = c.next != NULL ? c.next + 1 : NULL;
    c.optional = *end == '?';
    c.type = end[c.optional ? -1 : 0];
    c.printed = c.format[0] != '*';
    c.width = (int)strtol(c.format, &end, 10);
    c.digits = *end == '.' ? (int)strtol(end + 1, NULL, 10) : 0;
    if (found < 3 && c.type != 'w')
        snprintf(c.title, sizeof c.title, "%s", c.key);
    return c;
}

static void print_titles(const bench_rows *rows) {
    for (const char *at = rows->columns; at != NULL;) {
        const column c = parse(at);
        const bool first = at == rows->columns, left = c.width < 0;
        if (c.printed && c.title[0] != '\0')
            moert_program_say(rows->context, "%*s%s%*s", c.gap, "", first ? "#" : "",
                              first ? c.width + (left ? 1 : -1) : c.width, c.title);
        at = c.next;
    }
    moert_program_say(rows->context, "\n");
}

bench_rows bench_rows_begin(const moert_context *context, const char *columns, const char *format,
                            ...) {
    const bench_rows rows = {.context = context, .columns = columns, .json = json_array()};
    char text[1024];
    if (format != NULL) {
        va_list values;
        va_start(values, format);
        vsnprintf(text, sizeof text, format, values);
        va_end(values);
        moert_program_say(context, "# moert %s, %s\n", bench_report_commit(), text);
    }
    print_titles(&rows);
    return rows;
}

enum { TEXT_BYTES = 256 };

/* Reads a column's arguments from `values`. Returns the value as JSON, and writes its text to
 * `text`. */
static json_t *take(const column *c, va_list *values, char *text) {
    const char *word;
    double number;
    switch (c->type) {
    case 's':
        word = va_arg(*values, const char *);
        snprintf(text, TEXT_BYTES, "%s", word != NULL ? word : "-");
        return word != NULL || !c->optional ? json_string(word) : json_null();
    case 'c':
        word = va_arg(*values, const char *);
        snprintf(text, TEXT_BYTES, "%s", moert_choice_word(word, va_arg(*values, unsigned)));
        return json_string(text);
    case 'z': {
        const size_t count = va_arg(*values, size_t);
        snprintf(text, TEXT_BYTES, "%zu", count);
        return json_integer((json_int_t)count);
    }
    case 'b':
    case 'w': {
        const bool is = va_arg(*values, int) != 0;
        snprintf(text, TEXT_BYTES, "%s",
                 c->type == 'b' ? is ? "yes" : "no"
                 : is           ? "wrong"
                                : "right");
        return json_boolean(is);
    }
    case 'o':
        return va_arg(*values, json_t *);
    default:
        number = va_arg(*values, double);
        if (c->optional && !(number > 0.0)) {
            snprintf(text, TEXT_BYTES, "-");
            return json_null();
        }
        snprintf(text, TEXT_BYTES, c->type == 'e' ? "%.*e" : "%.*f", c->digits, number);
        return json_real(number);
    }
}

moert_status bench_rows_add(bench_rows *rows, ...) {
    json_t *row = json_object();
    bool failed = false;
    va_list values;
    va_start(values, rows);
    for (const char *at = rows->columns; at != NULL;) {
        const column c = parse(at);
        char text[TEXT_BYTES] = "";
        json_t *value = take(&c, &values, text);
        at = c.next;
        if (strcmp(c.key, "wrong") == 0)
            rows->wrong +=
                json_is_integer(value) ? (size_t)json_integer_value(value) : json_is_true(value);
        if (c.printed && !rows->quiet && (text[0] != '\0' || at != NULL))
            moert_program_say(rows->context, "%*s%*s", c.gap, "", c.width, text);
        if (c.key[0] == '-')
            json_decref(value);
        else
            failed |= json_object_set_new(row, c.key, value) != 0;
    }
    va_end(values);
    if (!rows->quiet)
        moert_program_say(rows->context, "\n");
    fflush(stdout);
    return json_array_append_new(rows->json, row) == 0 && !failed
               ? MOERT_OK
               : MOERT_FAIL(ERROR_MEMORY, "no memory for the rows of results");
}

moert_status bench_rows_end(bench_rows *rows, const char *path, const char *what,
                            moert_status status) {
    if (status == MOERT_OK && path != NULL && moert_context_rank(rows->context) == 0)
        status = moert_json_write(path, rows->json, JSON_INDENT(1) | JSON_REAL_PRECISION(6));
    if (status == MOERT_OK && rows->wrong > 0)
        status =
            MOERT_FAIL(ERROR_NUMERIC, "verification failed: %zu %s are wrong", rows->wrong, what);
    json_decref(rows->json);
    return moert_comm_agree(moert_context_comm(rows->context), status);
}

void bench_report_machine(char *text, size_t bytes) {
    char line[256], *value;
    struct utsname system = {0};
    uname(&system);
    /* the result where /proc/cpuinfo has no model name, such as on AArch64 */
    snprintf(text, bytes, "%s, %s", system.nodename, system.machine);
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "model name", 10) == 0 && (value = strchr(line, ':')) != NULL) {
            value[strcspn(value, "\n")] = '\0';
            snprintf(text, bytes, "%s, %s", system.nodename, value + 2);
            break;
        }
    if (file != NULL)
        fclose(file);
}

const char *bench_report_commit(void) {
    return MOERT_COMMIT;
}
