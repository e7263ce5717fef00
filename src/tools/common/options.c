/* Parses long options by a table, and prints the table as the usage text. */
#include "tools/common/options.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/memory.h"
#include "base/text.h"

/* ---- values ---- */

static moert_status store_uint(const moert_option *option, const char *text) {
    const char *limits = option->limits != NULL ? option->limits : "..";
    const char *dots = strstr(limits, "..");
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    bool valid =
        text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && (size_t)value == value;
    valid = valid && (dots == limits || value >= strtoull(limits, NULL, 10));
    valid = valid && (dots == NULL || dots[2] == '\0' || value <= strtoull(dots + 2, NULL, 10));
    if (!valid)
        return MOERT_FAIL(ERROR_USAGE, "--%s %s: expected an integer %s", option->name, text,
                          dots == limits && dots[2] == '\0' ? "0.." : limits);
    *(size_t *)option->target = (size_t)value;
    return MOERT_OK;
}

static moert_status store_float(const moert_option *option, const char *text) {
    const char *limits = option->limits != NULL ? option->limits : "..";
    const char *dots = strstr(limits, "..");
    char *end;
    double value = strtod(text, &end);
    bool valid = end != text && *end == '\0' && isfinite(value);
    /* copies the lower limit, since strtod would read "0." from "0..1" */
    char low[32], shown[64];
    snprintf(shown, sizeof shown, "number %s", limits);
    snprintf(low, sizeof low, "%.*s", dots != NULL ? (int)(dots - limits) : 0, limits);
    valid = valid && (low[0] == '\0' || value >= strtod(low, NULL));
    valid = valid && (dots == NULL || dots[2] == '\0' || value <= strtod(dots + 2, NULL));
    if (!valid)
        return MOERT_FAIL(ERROR_USAGE, "--%s %s: expected a %s", option->name, text,
                          strcmp(limits, "..") == 0 ? "finite number" : shown);
    *(double *)option->target = value;
    return MOERT_OK;
}

static moert_status store_choice(const moert_option *option, const char *text) {
    const int index = moert_choice_index(option->limits, text);
    if (index < 0)
        return MOERT_FAIL(ERROR_USAGE, "--%s %s: expected %s", option->name, text, option->limits);
    *(unsigned *)option->target = (unsigned)index;
    return MOERT_OK;
}

static moert_status store_flag(const moert_option *option, const char *text) {
    if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
        return MOERT_FAIL(ERROR_USAGE, "--%s=%s: expected 0 or 1", option->name, text);
    *(bool *)option->target = text[0] == '1';
    return MOERT_OK;
}

static moert_status store_word(const moert_option *option, const char *text) {
    moert_option_list *list = option->target;
    const char **grown = realloc(list->words, (list->count + 1) * sizeof *grown);
    if (grown == NULL)
        return MOERT_FAIL(ERROR_MEMORY, "no room for the values of --%s", option->name);
    grown[list->count++] = text;
    list->words = grown;
    return MOERT_OK;
}

static moert_status store_string(const moert_option *option, const char *text) {
    *(const char **)option->target = text;
    return MOERT_OK;
}

static moert_status store(const moert_option *option, const char *text) {
    static moert_status (*const by_type[])(const moert_option *, const char *) = {
        [MOERT_OPTION_STRING] = store_string, [MOERT_OPTION_LIST] = store_word,
        [MOERT_OPTION_UINT] = store_uint,     [MOERT_OPTION_FLOAT] = store_float,
        [MOERT_OPTION_FLAG] = store_flag,     [MOERT_OPTION_CHOICE] = store_choice,
    };
    return by_type[option->type](option, text);
}

/* ---- names ---- */

static bool is_option(const char *word) {
    return strncmp(word, "--", 2) == 0;
}

static const moert_option *find(const moert_option *table, size_t count, const char *name,
                                size_t length) {
    for (size_t i = 0; i < count; i++)
        if (table[i].name != NULL && strlen(table[i].name) == length &&
            strncmp(table[i].name, name, length) == 0)
            return &table[i];
    return NULL;
}

static moert_status fail_unknown(const moert_option *table, size_t count, const char *word,
                                 size_t length) {
    char name[64];
    const char *nearest = NULL;
    snprintf(name, sizeof name, "%.*s", (int)length, word);
    size_t best =
        /* a name with a larger edit distance is unlikely to be meant */
        1 + moert_min(strlen(name), 9) / 3;
    for (size_t i = 0; i < count; i++) {
        size_t distance =
            table[i].name != NULL ? moert_text_distance(name, table[i].name) : best + 1;
        if (distance <= best && (nearest == NULL || distance < best)) {
            nearest = table[i].name;
            best = distance;
        }
    }
    if (nearest == NULL)
        return MOERT_FAIL(ERROR_USAGE, "unknown option --%s; --help lists the options", name);
    return MOERT_FAIL(ERROR_USAGE, "unknown option --%s; did you mean --%s?", name, nearest);
}

/* ---- arguments ---- */

/* Stores the option argv[*at] with its values; *at becomes the index of the next option. */
static moert_status take(const moert_option *table, size_t count, int argc, char **argv, int *at) {
    const char *word = argv[(*at)++];
    if (!is_option(word))
        return MOERT_FAIL(ERROR_USAGE, "unexpected word '%s'; options begin with --", word);
    const char *name = word + 2, *value = strchr(name, '=');
    size_t length = value != NULL ? (size_t)(value - name) : strlen(name);
    const moert_option *option = find(table, count, name, length);
    if (option == NULL && value == NULL && strncmp(name, "no-", 3) == 0) {
        const moert_option *negated = find(table, count, name + 3, length - 3);
        if (negated != NULL && negated->type == MOERT_OPTION_FLAG)
            return store(negated, "0");
    }
    if (option == NULL)
        return fail_unknown(table, count, name, length);
    if (value != NULL)
        return store(option, value + 1);
    if (option->type == MOERT_OPTION_FLAG)
        return store(option, "1");
    if (*at >= argc || is_option(argv[*at]))
        return MOERT_FAIL(ERROR_USAGE, "--%s needs a value", option->name);
    do
        MOERT_TRY(store(option, argv[(*at)++]));
    while (option->type == MOERT_OPTION_LIST && *at < argc && !is_option(argv[*at]));
    return MOERT_OK;
}

const char *moert_options_given(const moert_command *command, const void *object, size_t bytes) {
    for (int at = 1; at < command->argc; at++) {
        const char *word = command->argv[at], *name = word + (is_option(word) ? 2 : 0);
        const moert_option *option = find(command->table, command->count, name, strcspn(name, "="));
        if (name != word && option != NULL && (uintptr_t)option->target - (uintptr_t)object < bytes)
            return option->name;
    }
    return NULL;
}

bool moert_options_of_file(const moert_command *command, const void *object, size_t bytes) {
    moert_command arguments = *command;
    arguments.argc -= (int)command->from_file;
    arguments.argv += command->from_file;
    return moert_options_given(&arguments, object, bytes) == NULL &&
           moert_options_given(command, object, bytes) != NULL;
}

/* Stores the value for "not given" in the target of an option without a default. */
static void unset(const moert_option *option) {
    switch (option->type) {
#define MOERT_OPTION_UNSET(type, shown, of, none)                                                  \
    case MOERT_OPTION_##type:                                                                      \
        *(of *)option->target = (none);                                                            \
        break;
        MOERT_OPTION_TABLE(MOERT_OPTION_UNSET)
#undef MOERT_OPTION_UNSET
    }
}

static moert_status store_defaults(const moert_option *table, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (table[i].name != NULL && table[i].standard != NULL)
            MOERT_TRY(store(&table[i], table[i].standard));
        else if (table[i].name != NULL)
            unset(&table[i]);
    return MOERT_OK;
}

void moert_options_free(const moert_option *table, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (table[i].type == MOERT_OPTION_LIST) {
            free(((moert_option_list *)table[i].target)->words);
            unset(&table[i]);
        }
}

moert_status moert_options_parse(const moert_option *table, size_t count, int argc, char **argv,
                                 bool *help) {
    moert_status status = store_defaults(table, count);
    *help = false;
    for (int at = 1; status == MOERT_OK && at < argc && !*help;) {
        *help = strcmp(argv[at], "--help") == 0 || strcmp(argv[at], "-h") == 0;
        if (!*help)
            status = take(table, count, argc, argv, &at);
    }
    if (status != MOERT_OK)
        moert_options_free(table, count);
    return status;
}

/* ---- values as text ---- */

void moert_option_float_text(double value, char *text, size_t bytes) {
    int digits = 6;
    do
        snprintf(text, bytes, "%.*g", digits, value);
    while (strtod(text, NULL) != value && digits++ < 17);
}

static void print_list(const moert_option *option, FILE *file) {
    const moert_option_list *list = option->target;
    fprintf(file, "%s--%s", list->count > 0 ? "" : "no ", option->name);
    for (size_t i = 0; i < list->count; i++)
        fprintf(file, " %s", list->words[i]);
    fputc(0, file);
}

const char *moert_option_text(const moert_option *option, char *buffer, size_t bytes) {
    switch (option->type) {
    case MOERT_OPTION_STRING:
        return *(const char **)option->target;
    case MOERT_OPTION_FLAG:
        return *(bool *)option->target ? "1" : NULL;
    case MOERT_OPTION_UINT:
        snprintf(buffer, bytes, "%zu", *(size_t *)option->target);
        return *(size_t *)option->target < SIZE_MAX ? buffer : NULL;
    case MOERT_OPTION_FLOAT:
        moert_option_float_text(*(double *)option->target, buffer, bytes);
        return isnan(*(double *)option->target) ? NULL : buffer;
    default:
        return moert_choice_word(option->limits, *(unsigned *)option->target);
    }
}

void moert_options_print(const moert_option *table, size_t count, FILE *file) {
    char buffer[64];
    for (size_t i = 0; i < count; i++) {
        if (table[i].name == NULL)
            continue;
        if (table[i].type == MOERT_OPTION_LIST) {
            print_list(&table[i], file);
            continue;
        }
        const char *value = moert_option_text(&table[i], buffer, sizeof buffer);
        fprintf(file, "%s--%s%s%s%c", value != NULL ? "" : "no ", table[i].name,
                value != NULL ? " " : "", value != NULL ? value : "", 0);
    }
}

/* ---- usage ---- */

enum { HELP_COLUMN = 30, LINE_COLUMNS = 100 };

/* Prints the text in lines that begin at column `from`. The cursor must be at this column. */
static void put_lines(FILE *file, int from, const char *text) {
    int column = from;
    while (*text != '\0') {
        int word = (int)strcspn(text, " ");
        if (column > from && column + 1 + word > LINE_COLUMNS) {
            fprintf(file, "\n%*s", from, "");
            column = from;
        } else if (column > from) {
            column += fprintf(file, " ");
        }
        column += fprintf(file, "%.*s", word, text);
        text += word + strspn(text + word, " ");
    }
    fputc('\n', file);
}

/* Prints the help of an option at HELP_COLUMN. `column` is the cursor's present column. */
static void put_help(FILE *file, int column, const char *text) {
    if (column + 2 > HELP_COLUMN) {
        fputc('\n', file);
        column = 0;
    }
    fprintf(file, "%*s", HELP_COLUMN - column, "");
    put_lines(file, HELP_COLUMN, text);
}

static void put_option(FILE *file, const moert_option *option) {
    static const char *const shown[] = {
#define MOERT_OPTION_SHOWN(type, text, of, none) text,
        MOERT_OPTION_TABLE(MOERT_OPTION_SHOWN)
#undef MOERT_OPTION_SHOWN
    };
    const bool flag = option->type == MOERT_OPTION_FLAG;
    const bool number = option->type == MOERT_OPTION_UINT || option->type == MOERT_OPTION_FLOAT;
    const char *value = option->limits != NULL && !number ? option->limits : shown[option->type];
    int column = fprintf(file, "  --%s%s%s", option->name, value[0] != '\0' ? " " : "", value);
    const bool limited = number && option->limits != NULL && strcmp(option->limits, "..") != 0;
    const char *standard = option->standard != NULL ? option->standard : "";
    if (flag && option->standard != NULL)
        standard = strcmp(standard, "1") == 0 ? "on; --no-" : "";
    char *text = moert_text_format(
        "%s%s%s%s%s%s%s%s", option->help, limited ? " [" : "", limited ? option->limits : "",
        limited ? "]" : "", standard[0] != '\0' ? " (default " : "", standard,
        flag && standard[0] != '\0' ? option->name : "", standard[0] != '\0' ? ")" : "");
    put_help(file, column, text != NULL ? text : option->help);
    free(text);
}

void moert_options_usage(FILE *file, const char *synopsis, const char *about,
                         const moert_option *table, size_t count) {
    fprintf(file, "usage: %s\n%s\n", synopsis, about);
    if (count > 0 && table[0].name != NULL)
        fputc('\n', file);
    for (size_t i = 0; i < count; i++)
        if (table[i].name == NULL) {
            fputc('\n', file);
            put_lines(file, 0, table[i].help);
        } else {
            put_option(file, &table[i]);
        }
    fputs("  --help", file);
    put_help(file, 8, "this text");
}
