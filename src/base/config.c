/* Reads the MOERT_* variables by the table in config.h. */
#include "base/config.h"
#include "base/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static moert_config config;
static int config_loaded;

static const struct {
    moert_variable variable; /* the field `value` stays NULL */
    size_t offset;
} rows[] = {
#define MOERT_SCOPE_AGREE true
#define MOERT_SCOPE_LOCAL false
#define MOERT_CONFIG_ROW(field, name, type, scope, standard, limits, help)                         \
    {{name, #type, standard, limits, help, MOERT_SCOPE_##scope, NULL},                             \
     offsetof(moert_config, field)},
    MOERT_VARIABLE_TABLE(MOERT_CONFIG_ROW)
#undef MOERT_CONFIG_ROW
};
enum { ROWS = MOERT_COUNT(rows) };

int moert_choice_index(const char *choices, const char *word) {
    const size_t length = strlen(word);
    int index = 0;
    for (const char *at = choices;; index++) {
        const size_t span = strcspn(at, "|");
        if (span == length && strncmp(at, word, length) == 0)
            return index;
        if (at[span] == '\0')
            return -1;
        at += span + 1;
    }
}

static int parse_number(const moert_variable *row, const char *text, unsigned *value) {
    if (strcmp(row->type, "CHOICE") == 0 || strcmp(row->type, "BOOL") == 0) {
        const int index = moert_choice_index(row->type[0] == 'B' ? "0|1" : row->limits, text);
        *value = (unsigned)index;
        return index >= 0;
    }
    unsigned long low = 0, high = 0;
    char *end;
    sscanf(row->limits, "%lu-%lu", &low, &high);
    errno = 0;
    unsigned long number = strtoul(text, &end, 10);
    *value = (unsigned)number;
    /* text[0] is tested since strtoul accepts leading blanks, and reads "-1" as a huge number */
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && number >= low &&
           number <= high;
}

static int load_row(size_t i, const char *text) {
    void *field = (char *)&config + rows[i].offset;
    if (strcmp(rows[i].variable.type, "STRING") != 0)
        return parse_number(&rows[i].variable, text, field);
    *(const char **)field = text;
    return 1;
}

const moert_config *moert_config_get(void) {
    if (!config_loaded) {
        config_loaded = 1;
        for (size_t i = 0; i < ROWS; i++) {
            const char *text = getenv(rows[i].variable.name);
            if (text == NULL || !load_row(i, text))
                load_row(i, rows[i].variable.standard);
        }
        if (config.bf16 == MOERT_BF16_AUTO && config.backend == MOERT_BACKEND_PORTABLE)
            config.bf16 = MOERT_BF16_WIDENED; /* MOERT_BACKEND=portable promises bits that do not
                                                 depend on the CPU */
    }
    return &config;
}

void moert_config_reload(void) {
    config_loaded = 0;
}

int moert_config_is_legal(const moert_variable *variable) {
    unsigned ignored;
    return variable->value == NULL || strcmp(variable->type, "STRING") == 0 ||
           parse_number(variable, variable->value, &ignored);
}

int moert_config_variable(size_t index, moert_variable *variable) {
    if (index >= ROWS)
        return 0;
    *variable = rows[index].variable;
    variable->value = getenv(variable->name);
    return 1;
}

const char *moert_choice_word(const char *choices, unsigned index) {
    static _Thread_local char word[32];
    const char *at = choices;
    for (; index > 0 && at != NULL; index--) {
        at = strchr(at, '|');
        at = at != NULL ? at + 1 : NULL;
    }
    snprintf(word, sizeof word, "%.*s", at != NULL ? (int)strcspn(at, "|") : 1,
             at != NULL ? at : "?");
    return word;
}

const char *moert_config_choice(const char *name, unsigned value) {
    for (size_t i = 0; i < ROWS; i++)
        if (strcmp(rows[i].variable.name, name) == 0)
            return moert_choice_word(rows[i].variable.limits, value);
    return "?";
}
