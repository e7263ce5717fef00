/* Options in JSON: reads files of options, and writes the options of a run. */
#include "tools/common/option_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "io/json.h"

enum { LIMIT_BYTES = 1 << 26, DIGITS = 15 };

/* ---- options from a file ---- */

/* An array of words that grows. */
typedef struct words {
    char **word;
    size_t count, room;
} words;

/* Appends a word, and owns it from then on. */
static moert_status append(words *all, char *word) {
    const moert_status status = word == NULL
                                    ? MOERT_FAIL(ERROR_MEMORY, "no room for the options of a file")
                                    : MOERT_GROW(&all->word, &all->room, all->count + 1);
    if (status == MOERT_OK)
        all->word[all->count++] = word;
    else
        free(word);
    return status;
}

/* Appends --NAME=VALUE; for an array, one word for each element. */
static moert_status append_value(words *all, const char *path, const char *name,
                                 const json_t *value) {
    char number[32];
    if (value == NULL)
        return MOERT_FAIL(ERROR_USAGE, "%s: the record of '%s' has no 'value'", path, name);
    switch (json_typeof(value)) {
    case JSON_NULL:
        return MOERT_OK;
    case JSON_TRUE:
    case JSON_FALSE:
        return append(all, moert_text_format("--%s=%d", name, json_is_true(value)));
    case JSON_STRING:
        return append(all, moert_text_format("--%s=%s", name, json_string_value(value)));
    case JSON_INTEGER:
        return append(all, moert_text_format("--%s=%lld", name, json_integer_value(value)));
    case JSON_REAL:
        moert_option_float_text(json_real_value(value), number, sizeof number);
        return append(all, moert_text_format("--%s=%s", name, number));
    case JSON_ARRAY:
        for (size_t i = 0; i < json_array_size(value); i++) {
            const json_t *element = json_array_get(value, i);
            if (json_is_array(element))
                return MOERT_FAIL(ERROR_USAGE, "%s: '%s' holds an array in an array", path, name);
            MOERT_TRY(append_value(all, path, name, element));
        }
        return MOERT_OK;
    default:
        return MOERT_FAIL(ERROR_USAGE,
                          "%s: '%s' is an object; expected a value or an array of values", path,
                          name);
    }
}

static bool was_given(const json_t *entry) {
    const char *source = json_string_value(json_object_get(entry, "source"));
    return source != NULL && (strcmp(source, "given") == 0 || strcmp(source, "file") == 0);
}

/* The object with the options of a run, or NULL if the file holds options by name. */
static json_t *find_record(const json_t *root) {
    const json_t *sessions = json_object_get(root, "sessions");
    const json_t *record = root;
    if (json_is_array(sessions))
        record = json_array_get(sessions, json_array_size(sessions) - 1);
    json_t *options = json_object_get(record, "options");
    return json_is_object(options) ? options : NULL;
}

/* Appends the words of an option, unless the arguments give the option. An unknown name becomes a
 * word that moert_options_parse refuses. */
static moert_status append_option(words *all, const char *path, const moert_command *command,
                                  const char *name, const json_t *value) {
    for (size_t i = 0; i < command->count; i++)
        if (command->table[i].name != NULL && strcmp(command->table[i].name, name) == 0)
            return moert_options_given(command, command->table[i].target, 1) != NULL
                       ? MOERT_OK
                       : append_value(all, path, name, value);
    return append(all, moert_text_format("--%s=", name));
}

/* Appends the file's options, and checks them as if no argument were given. */
static moert_status append_file(const char *path, moert_option_repeats *repeats,
                                const moert_command *command, words *all) {
    json_t *root, *value;
    const char *name;
    bool help;
    MOERT_TRY(moert_json_read(path, "the file of options", LIMIT_BYTES, &root));
    moert_status status = MOERT_OK;
    json_t *const record = find_record(root);
    json_object_foreach(record != NULL ? record : root, name, value) {
        const bool wanted =
            record == NULL || (was_given(value) && (repeats == NULL || repeats(name)));
        if (status == MOERT_OK && wanted)
            status = append_option(all, path, command, name,
                                   record == NULL ? value : json_object_get(value, "value"));
    }
    json_decref(root);
    MOERT_TRY(status);
    status = moert_options_parse(command->table, command->count, (int)all->count, all->word, &help);
    if (status == MOERT_ERROR_USAGE) {
        char *why = moert_error_keep();
        MOERT_FAIL(ERROR_USAGE, "%s: %s", path, why != NULL ? why : "an option is wrong");
        free(why);
    }
    return status;
}

moert_status moert_option_file_read(const char *path, moert_option_repeats *repeats,
                                    moert_command *command) {
    words all = {NULL, 0, 0};
    /* each word is a copy, so that moert_option_file_free frees all of them */
    moert_status status = append(&all, strdup(command->argv[0]));
    if (status == MOERT_OK)
        status = append_file(path, repeats, command, &all);
    const size_t from_file = moert_max(all.count, 1) - 1;
    for (int i = 1; status == MOERT_OK && i < command->argc; i++)
        status = append(&all, strdup(command->argv[i]));
    *command = (moert_command){command->table, command->count, (int)all.count, all.word, from_file};
    return status;
}

void moert_option_file_free(moert_command *command) {
    for (int i = 0; i < command->argc; i++)
        free(command->argv[i]);
    free(command->argv);
    command->argc = 0;
    command->argv = NULL;
}

/* ---- the record of the options ---- */

static json_t *value_of(const moert_option *option) {
    char buffer[64], rounded[32];
    if (option->type == MOERT_OPTION_LIST) {
        const moert_option_list *list = option->target;
        json_t *values = json_array();
        for (size_t i = 0; i < list->count; i++)
            json_array_append_new(values, json_string(list->words[i]));
        return values;
    }
    const char *text = moert_option_text(option, buffer, sizeof buffer);
    if (option->type == MOERT_OPTION_FLAG)
        return json_boolean(text != NULL);
    if (text == NULL)
        return json_null();
    if (option->type == MOERT_OPTION_UINT)
        return json_integer((json_int_t) * (size_t *)option->target);
    if (option->type != MOERT_OPTION_FLOAT)
        return json_string(text);
    /* a number with more digits than the file's numbers have is written as text */
    const double value = *(double *)option->target;
    snprintf(rounded, sizeof rounded, "%.*g", DIGITS, value);
    return strtod(rounded, NULL) == value ? json_real(value) : json_string(text);
}

/* Whether an option that was not given has a value other than its default. */
static bool is_derived(const moert_option *option) {
    char buffer[64];
    const char *text = moert_option_text(option, buffer, sizeof buffer),
               *standard = option->standard;
    switch (option->type) {
    case MOERT_OPTION_FLAG:
        return (text != NULL) != (standard != NULL && strcmp(standard, "1") == 0);
    case MOERT_OPTION_FLOAT:
        return (text == NULL) != (standard == NULL) ||
               (text != NULL && *(double *)option->target != strtod(standard, NULL));
    case MOERT_OPTION_CHOICE: /* without a default, the first word is the value */
        return standard != NULL ? strcmp(text, standard) != 0 : *(unsigned *)option->target != 0;
    case MOERT_OPTION_LIST:
        return false;
    default:
        return (text == NULL) != (standard == NULL) ||
               (text != NULL && strcmp(text, standard) != 0);
    }
}

/* The source of an option's value. If several options set one field, they have the same source. */
static const char *source_of(const moert_option *option, const moert_command *command) {
    if (moert_options_of_file(command, option->target, 1))
        return "file";
    if (moert_options_given(command, option->target, 1) != NULL)
        return "given";
    return is_derived(option) ? "derived" : "default";
}

static json_t *list_options(const moert_command *command) {
    json_t *all = json_object();
    for (const moert_option *o = command->table; o < command->table + command->count; o++)
        if (o->name != NULL)
            json_object_set_new(
                all, o->name,
                json_pack("{so ss}", "value", value_of(o), "source", source_of(o, command)));
    for (char **at = environ; *at != NULL; at++) {
        const char *equals = strchr(*at, '=');
        if (strncmp(*at, "MOERT_", 6) != 0 || equals == NULL)
            continue;
        json_t *name = json_stringn(*at, (size_t)(equals - *at));
        json_object_set_new(all, name != NULL ? json_string_value(name) : "",
                            json_pack("{ss ss}", "value", equals + 1, "source", "environment"));
        json_decref(name);
    }
    return all;
}

moert_status moert_option_record(const moert_command *command, char **text) {
    json_t *arguments = json_array();
    json_array_append_new(arguments, json_string(command->argv[0]));
    for (int i = 1 + (int)command->from_file; i < command->argc; i++)
        json_array_append_new(arguments, json_string(command->argv[i]));
    json_t *root = json_pack("{ss ss so so}", "version", MOERT_VERSION, "commit", MOERT_COMMIT,
                             "command", arguments, "options", list_options(command));
    const moert_status status =
        moert_json_text("the run's record", root,
                        JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(DIGITS), text);
    json_decref(root);
    return status;
}

void moert_option_version(FILE *file, const char *program) {
    fprintf(file, "%s %s, commit %s", program, MOERT_VERSION, MOERT_COMMIT);
}
