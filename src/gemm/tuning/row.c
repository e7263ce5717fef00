/* Parses, prints and matches tuning rows; the grammar is in kernels/gemm/tuning.txt. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "gemm/tuning/tuning.h"

enum { MOST_WORDS = 24, LINE_BYTES = 512, PROBLEM_BYTES = 160 };

/* The macro writes the reason to `problem`, and its value is false. */
#define REFUSED(problem, ...) (snprintf(problem, PROBLEM_BYTES, __VA_ARGS__), false)

static const char *const level_names[] = {"default", "vendor", "family", "device"};
enum { LEVELS = MOERT_COUNT(level_names) };

static const char *const tuned_names[] = {
#define TUNED_NAME(name, text) text,
    MOERT_TUNED_TABLE(TUNED_NAME)
#undef TUNED_NAME
};

static const struct choice {
    const char *name;
    size_t offset;
    unsigned low, high, multiple;
} choices_of_rows[] = {
#define CHOICE_ROW(name, low, high, multiple, standard)                                            \
    {#name, offsetof(moert_choices, name), low, high, multiple},
    MOERT_CHOICE_TABLE(CHOICE_ROW)
#undef CHOICE_ROW
};
enum { CHOICES = MOERT_COUNT(choices_of_rows) };

const char *moert_tuned_name(moert_tuned operation) {
    return tuned_names[operation];
}

/* ---- choices ---- */

static unsigned value_of(const moert_choices *choices, size_t index) {
    return *(const unsigned *)((const char *)choices + choices_of_rows[index].offset);
}

static bool check_choice(const struct choice *c, unsigned long value, char *problem) {
    if (value >= c->low && value <= c->high && value % c->multiple == 0)
        return true;
    return REFUSED(problem, "%s=%lu is not %u to %u%s", c->name, value, c->low, c->high,
                   c->multiple > 1 ? ", a multiple of 16" : "");
}

bool moert_choices_check(const moert_choices *choices, char problem[PROBLEM_BYTES]) {
    for (size_t i = 0; i < CHOICES; i++)
        if (value_of(choices, i) != 0 &&
            !check_choice(&choices_of_rows[i], value_of(choices, i), problem))
            return false;
    return true;
}

moert_status moert_choices_check_whole(const moert_choices *choices) {
    char problem[PROBLEM_BYTES] = "a choice is missing";
    bool whole = true;
    for (size_t i = 0; i < CHOICES && choices != NULL; i++)
        whole &= value_of(choices, i) != 0;
    if (!whole || (choices != NULL && !moert_choices_check(choices, problem)))
        return MOERT_FAIL(ERROR_USAGE, "no GEMM kernel can use these tuning choices: %s", problem);
    return MOERT_OK;
}

void moert_choices_print(const moert_choices *choices, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < CHOICES && used < bytes; i++)
        if (value_of(choices, i) != 0)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s=%u", used > 0 ? " " : "",
                                     choices_of_rows[i].name, value_of(choices, i));
}

/* ---- parsing ---- */

/* Splits a line up to its comment at blanks; a quoted part is one word. False for a quote without
 * end, and for too many words. */
static bool split(char *line, char *words[MOST_WORDS], size_t *count) {
    *count = 0;
    for (char *at = line + strspn(line, " \t\r\n"); *at != '\0' && *at != '#';) {
        const bool quoted = *at == '"';
        if (*count == MOST_WORDS)
            return false;
        words[(*count)++] = at += quoted;
        at += strcspn(at, quoted ? "\"" : " \t\r\n#");
        if (quoted && *at == '\0')
            return false;
        if (*at == '#') {
            *at = '\0';
            return true;
        }
        if (*at != '\0')
            *at++ = '\0';
        at += strspn(at, " \t\r\n");
    }
    return true;
}

static int index_in(const char *const *names, size_t count, const char *word) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], word) == 0)
            return (int)i;
    return -1;
}

/* Reads digits only; *end = the first character after the digits. */
static bool read_number(const char *text, size_t *value, char **end) {
    errno = 0;
    *value = strtoull(text, end, 10);
    return text[0] >= '0' && text[0] <= '9' && errno == 0;
}

static bool read_range(const char *word, moert_tuning_range *range) {
    char *end;
    *range = (moert_tuning_range){0, SIZE_MAX};
    if (strcmp(word, "*") == 0)
        return true;
    if (!read_number(word, &range->low, &end) || range->low == 0)
        return false;
    if (*end == '\0') {
        range->high = range->low;
        return true;
    }
    if (*end++ != '-')
        return false;
    return *end == '\0' ||
           (read_number(end, &range->high, &end) && *end == '\0' && range->high >= range->low);
}

static bool read_choice(const char *word, moert_choices *choices, char *problem) {
    size_t value;
    char *end;
    const size_t length = strcspn(word, "=");
    for (size_t i = 0; i < CHOICES; i++) {
        const struct choice *c = &choices_of_rows[i];
        if (strlen(c->name) != length || strncmp(c->name, word, length) != 0)
            continue;
        if (word[length] != '=' || !read_number(word + length + 1, &value, &end) || *end != '\0')
            return REFUSED(problem, "'%.40s' is not %s=NUMBER", word, c->name);
        *(unsigned *)((char *)choices + c->offset) = (unsigned)value;
        return check_choice(c, value, problem);
    }
    return REFUSED(problem, "there is no choice '%.40s'", word);
}

static bool read_operation_and_type(char *const *words, moert_tuning_row *row, char *problem) {
    const char *const types[] = {moert_dtype_name(MOERT_DTYPE_F32),
                                 moert_dtype_name(MOERT_DTYPE_BF16)};
    row->operation = index_in(tuned_names, MOERT_TUNED_OPERATIONS, words[0]);
    const int type = index_in(types, 2, words[1]);
    row->type = type < 0 ? -1 : type == 0 ? MOERT_DTYPE_F32 : MOERT_DTYPE_BF16;
    if (row->operation < 0 && strcmp(words[0], "*") != 0)
        return REFUSED(problem, "there is no operation '%.40s'", words[0]);
    if (row->type < 0 && strcmp(words[1], "*") != 0)
        return REFUSED(problem, "the type is '%.40s', not f32, bf16 or *", words[1]);
    return true;
}

static bool read_words(char *const *words, size_t count, moert_tuning_row *row, char *problem) {
    moert_tuning_range *const ranges[] = {&row->n, &row->k, &row->rows};
    const int level = index_in(level_names, LEVELS, words[0]);
    const size_t operation = level > 0 ? 2 : 1; /* index of the operation's word */
    if (level < 0)
        return REFUSED(problem,
                       "it begins with '%.40s', not device, family, vendor or "
                       "default",
                       words[0]);
    if (count < operation + 6)
        return REFUSED(problem, "it has %zu words, fewer than %zu", count, operation + 6);
    row->level = (moert_tuning_level)level;
    if (level > 0 &&
        (size_t)snprintf(row->pattern, sizeof row->pattern, "%s", words[1]) >= sizeof row->pattern)
        return REFUSED(problem, "the pattern has more than %zu characters",
                       sizeof row->pattern - 1);
    if (!read_operation_and_type(words + operation, row, problem))
        return false;
    for (size_t i = 0; i < 3; i++)
        if (!read_range(words[operation + 2 + i], ranges[i]))
            return REFUSED(problem, "'%.40s' is not a size, low-high, low- or *",
                           words[operation + 2 + i]);
    for (size_t i = operation + 5; i < count; i++)
        if (!read_choice(words[i], &row->choices, problem))
            return false;
    return true;
}

bool moert_tuning_parse(const char *line, moert_tuning_row *row, bool *empty,
                        char problem[PROBLEM_BYTES]) {
    char copy[LINE_BYTES], *words[MOST_WORDS];
    size_t count;
    *row = (moert_tuning_row){.operation = -1, .type = -1};
    *empty = line[strspn(line, " \t\r\n")] == '\0' || line[strspn(line, " \t\r\n")] == '#';
    if (*empty)
        return true;
    if (strcspn(line, "#") >= sizeof copy)
        return REFUSED(problem, "it has more than %zu characters", sizeof copy - 1);
    snprintf(copy, sizeof copy, "%s", line);
    if (!split(copy, words, &count))
        return REFUSED(problem, "it has more than %d words, or a quote without end",
                       (int)MOST_WORDS);
    return read_words(words, count, row, problem);
}

/* ---- printing and matching ---- */

static void print_range(const moert_tuning_range *range, char text[48]) {
    if (range->low == 0)
        snprintf(text, 48, "*");
    else if (range->high == range->low)
        snprintf(text, 48, "%zu", range->low);
    else if (range->high == SIZE_MAX)
        snprintf(text, 48, "%zu-", range->low);
    else
        snprintf(text, 48, "%zu-%zu", range->low, range->high);
}

void moert_tuning_print(const moert_tuning_row *row, char *line, size_t bytes) {
    char n[48], k[48], rows[48], choices[128], who[160] = "";
    print_range(&row->n, n);
    print_range(&row->k, k);
    print_range(&row->rows, rows);
    moert_choices_print(&row->choices, choices, sizeof choices);
    if (row->level != MOERT_TUNING_DEFAULT)
        snprintf(who, sizeof who, " \"%s\"", row->pattern);
    snprintf(line, bytes, "%s%s %s %s %s %s %s %s", level_names[row->level], who,
             row->operation < 0 ? "*" : tuned_names[row->operation],
             row->type < 0 ? "*" : moert_dtype_name((moert_dtype)row->type), n, k, rows, choices);
}

const char *moert_tuning_family(const moert_device_info *info) {
    if (!info->is_cpu)
        return "gpu";
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512f") ? info->has_tiles ? "cpu-avx512-amx" : "cpu-avx512"
           : __builtin_cpu_supports("avx2")  ? "cpu-avx2"
                                             : "cpu";
#elif defined(__aarch64__)
    return "cpu-neon";
#else
    return "cpu";
#endif
}

static bool in_range(const moert_tuning_range *range, size_t size) {
    return range->low == 0 || (size >= range->low && size <= range->high);
}

bool moert_tuning_matches(const moert_tuning_row *row, const moert_device_info *info,
                          const moert_tuning_key *key) {
    if ((row->operation >= 0 && row->operation != (int)key->operation) ||
        (row->type >= 0 && row->type != (int)key->type) || !in_range(&row->n, key->n) ||
        !in_range(&row->k, key->k) || !in_range(&row->rows, key->rows))
        return false;
    const size_t length = strlen(row->pattern);
    const char *family;
    switch (row->level) {
    case MOERT_TUNING_DEVICE:
        return strstr(info->name, row->pattern) != NULL;
    case MOERT_TUNING_VENDOR:
        return strstr(info->vendor, row->pattern) != NULL;
    case MOERT_TUNING_FAMILY:
        family = moert_tuning_family(info);
        return strncmp(family, row->pattern, length) == 0 &&
               (family[length] == '\0' || family[length] == '-');
    default:
        return true;
    }
}
