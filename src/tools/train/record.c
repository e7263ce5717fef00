/* Writes the program's part of a run's record. */
#include "tools/train/record.h"

#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "io/json.h"

static json_t *value_of(const moert_option *option) {
    char buffer[64];
    if (option->type == MOERT_OPTION_LIST) {
        const moert_option_list *list = option->target;
        json_t *words = json_array();
        for (size_t i = 0; i < list->count; i++)
            json_array_append_new(words, json_string(list->words[i]));
        return words;
    }
    const char *text = moert_option_text(option, buffer, sizeof buffer);
    if (option->type == MOERT_OPTION_FLAG)
        return json_boolean(text != NULL);
    if (text == NULL)
        return json_null();
    return option->type == MOERT_OPTION_UINT ? json_integer((json_int_t) * (size_t *)option->target)
           : option->type == MOERT_OPTION_FLOAT ? json_real(*(double *)option->target)
                                                : json_string(text);
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

/* The source of an option's value, such as `given` or `default`. If several options set one field,
 * they have the same source. */
static const char *source_of(const moert_option *option, const moert_command *command) {
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

moert_status moert_train_record(const moert_command *command, char **text) {
    json_t *words = json_array();
    for (int i = 0; i < command->argc; i++)
        json_array_append_new(words, json_string(command->argv[i]));
    json_t *root = json_pack("{ss ss so so}", "version", MOERT_VERSION, "commit", MOERT_COMMIT,
                             "command", words, "options", list_options(command));
    const moert_status status = moert_json_text(
        "the run's record", root, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(15), text);
    json_decref(root);
    return status;
}
