/* Reads kernels/programs.txt, whose head explains the lines. */
#include "support/programs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const char *const moert_embedded_names[];
extern const char *const moert_embedded_texts[];

enum { MOST_TEXT = 2048 };

static const char *table(void) {
    size_t i = 0;
    while (strcmp(moert_embedded_names[i], "programs.txt") != 0)
        i++;
    return moert_embedded_texts[i];
}

/* Finds the first line of the table (after `line`, unless that is NULL) that begins with this word.
 * Writes the line's other words to `rest`. */
static const char *next_line(const char *line, const char *word, size_t length,
                             char rest[MOST_TEXT]) {
    line = line == NULL ? table() : strchr(line, '\n') + 1;
    for (; *line != '\0'; line = strchr(line, '\n') + 1)
        if (strncmp(line, word, length) == 0 && strchr(" \n", line[length]) != NULL) {
            const char *words = line + length + (line[length] == ' ');
            snprintf(rest, MOST_TEXT, "%.*s", (int)strcspn(words, "\n"), words);
            return line;
        }
    return NULL;
}

static const char *after_word(const char *words) {
    words += strcspn(words, " ");
    return words + (*words == ' ');
}

/* Writes `words` with their first word replaced by `with`. */
static void replace_first(const char *words, const char *with, char replaced[MOST_TEXT]) {
    const char *rest = after_word(words);
    snprintf(replaced, MOST_TEXT, "%s%s%s", with, with[0] != '\0' && rest[0] != '\0' ? " " : "",
             rest);
}

/* Writes the word in brackets at the start of `words` without them. */
static void open_brackets(const char *words, char opened[MOST_TEXT]) {
    snprintf(opened, MOST_TEXT, "%.*s", (int)strcspn(words + 1, "]"), words + 1);
}

/* ---- programs that a line takes ---- */

/* Whether a value is one of the alternatives "A|B|N..M|*" at the start of `list`. */
static bool takes_value(const char *list, const char *value, size_t length) {
    for (const char *end = list + strcspn(list, " "); list < end; list += strcspn(list, "| ") + 1) {
        const size_t own = strcspn(list, "| ");
        char *after;
        long low, high;
        const long number = strtol(value, &after, 10);
        const bool whole = length > 0 && after == value + length;
        if ((own == length && strncmp(list, value, length) == 0) ||
            (own == 1 && *list == '*' && whole))
            return true;
        if (whole && sscanf(list, "%ld..%ld", &low, &high) == 2 && low <= number && number <= high)
            return true;
    }
    return false;
}

/* Whether the program has the define at the start of `words`, with one of its values. */
static bool has_define(const char *spec, const char *words) {
    const size_t length = strcspn(words, "= ");
    for (const char *at = spec; (at = strstr(at, " -D")) != NULL;) {
        at += 3;
        if (strncmp(at, words, length) == 0 && strcspn(at, "= ") == length) {
            const char *value = at + length + (at[length] == '=');
            return words[length] != '='
                       ? at[length] != '='
                       : takes_value(words + length + 1, value, strcspn(value, " "));
        }
    }
    return false;
}

/* Whether the program has the defines `words`; `left` is the number of the program's defines that
 * are not matched yet. */
static bool takes(const char *words, const char *spec, int left) {
    char rest[MOST_TEXT], with[MOST_TEXT];
    if (words[0] == '\0')
        return left == 0;
    if (words[0] == '@') {
        const size_t length = strcspn(words, " ");
        for (const char *line = NULL; (line = next_line(line, words, length, with)) != NULL;) {
            replace_first(words, with, rest);
            if (takes(rest, spec, left))
                return true;
        }
        return false;
    }
    if (words[0] == '[') {
        open_brackets(words, with);
        replace_first(words, with, rest);
        return takes(after_word(words), spec, left) || takes(rest, spec, left);
    }
    return has_define(spec, words) && takes(after_word(words), spec, left - 1);
}

bool programs_take(const char *spec) {
    char words[MOST_TEXT];
    int defines = 0;
    for (const char *at = spec; (at = strchr(at, ' ')) != NULL; at++)
        defines++;
    for (const char *line = NULL;
         (line = next_line(line, spec, strcspn(spec, " "), words)) != NULL;)
        if (takes(words, spec, defines))
            return true;
    return false;
}

bool programs_have_family(const char *spec) {
    char words[MOST_TEXT];
    return next_line(NULL, spec, strcspn(spec, " "), words) != NULL;
}

/* ---- listed programs ---- */

/* Calls `use` for the program `spec` with each listed combination of values of the defines
 * `words`. */
static void list(const char *words, const char *spec, void (*use)(const char *spec)) {
    char rest[MOST_TEXT], with[MOST_TEXT];
    if (words[0] == '\0') {
        use(spec);
    } else if (words[0] == '@') {
        const size_t length = strcspn(words, " ");
        for (const char *line = NULL; (line = next_line(line, words, length, with)) != NULL;) {
            replace_first(words, with, rest);
            list(rest, spec, use);
        }
    } else if (words[0] == '[') {
        open_brackets(words, with);
        replace_first(words, with, rest);
        list(after_word(words), spec, use);
        list(rest, spec, use);
    } else {
        const int name = (int)strcspn(words, "= ");
        const char *end = words + strcspn(words, " "), *value = words + name + (words[name] == '=');
        do {
            const int length = (int)strcspn(value, "| ");
            const bool sample = strncmp(value, "*", (size_t)length) != 0 || length == 0;
            snprintf(with, sizeof with, "%.*s", length, value);
            if (sample && strstr(with, "..") == NULL) {
                snprintf(with, sizeof with, "%s -D%.*s%s%.*s", spec, name, words,
                         words[name] == '=' ? "=" : "", length, value);
                list(after_word(words), with, use);
            }
            value += length + 1;
        } while (value < end);
    }
}

void programs_each(void (*use)(const char *spec)) {
    char words[MOST_TEXT], family[64];
    const char *line = table();
    for (; *line != '\0'; line = strchr(line, '\n') + 1) {
        if (strchr("#@\n", *line) != NULL)
            continue;
        const size_t length = strcspn(line, " \n");
        snprintf(family, sizeof family, "%.*s", (int)length, line);
        const char *rest = line + length + (line[length] == ' ');
        snprintf(words, sizeof words, "%.*s", (int)strcspn(rest, "\n"), rest);
        list(words, family, use);
    }
}
