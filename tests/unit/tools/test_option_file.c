// run: check=1 all=1san device=0
/* Options from JSON files: their values, what takes precedence, and every kind of wrong file. */
#include "support/files.h"
#include "support/test.h"
#include "tools/common/option_file.h"

static struct values {
    const char *out;
    moert_option_list data;
    size_t steps;
    double rate;
    bool quiet, checks;
    unsigned schedule;
} values;

static const moert_option table[] = {
    {.help = "Run"},
    {"out", MOERT_OPTION_STRING, &values.out, NULL, NULL, "directory"},
    {"data", MOERT_OPTION_LIST, &values.data, NULL, NULL, "files"},
    {"steps", MOERT_OPTION_UINT, &values.steps, "100", "1..5000", "steps"},
    {"rate", MOERT_OPTION_FLOAT, &values.rate, "3e-4", "0..1", "learning rate"},
    {"quiet", MOERT_OPTION_FLAG, &values.quiet, NULL, NULL, "no lines"},
    {"checks", MOERT_OPTION_FLAG, &values.checks, "1", NULL, "checksums"},
    {"schedule", MOERT_OPTION_CHOICE, &values.schedule, "cosine", "constant|cosine", "of the rate"},
};
enum { COUNT = MOERT_COUNT(table) };
static bool repeats(const char *name) {
    return strcmp(name, "quiet") != 0;
}

static char arguments[8][64];
static moert_command command;

/* Reads a file with this text before the words `line`, and parses both. */
static moert_status parse(const char *text, const char *line) {
    static char *argv[8];
    char *rest, *words = owned(strdup(line), free);
    bool help;
    moert_options_free(table, COUNT);
    command = (moert_command){table, COUNT, 1, argv, 0};
    argv[0] = strcpy(arguments[0], "program");
    for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        argv[command.argc] = strcpy(arguments[command.argc], word), command.argc++;
    write_json("options.json", text);
    const moert_status status =
        moert_option_file_read(in_directory("options.json"), repeats, &command);
    owned(command.argv, free);
    for (int i = 0; i < command.argc; i++)
        owned(command.argv[i], free);
    moert_options_free(table, COUNT);
    return status != MOERT_OK
               ? status
               : moert_options_parse(table, COUNT, command.argc, command.argv, &help);
}

/* All values as words of a command line. */
static const char *printed(void) {
    char *text;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    moert_options_print(table, COUNT, file);
    assert_int_equal(fclose(file), 0);
    owned(text, free);
    for (size_t i = 0; i + 1 < bytes; i++)
        text[i] = text[i] == '\0' ? ';' : text[i];
    return text;
}

TEST(test_arguments_take_precedence_over_the_file_and_the_file_over_defaults) {
    static const struct {
        const char *file, *words, *values;
    } rows[] = {
        {"{}", "",
         "no --out;no --data;--steps 100;--rate 0.0003;no --quiet;--checks 1;--schedule cosine"},
        {"{'steps': 7, 'rate': 0.5, 'quiet': true, 'checks': false, 'out': 'a b',"
         " 'data': ['x', 0.25, 3], 'schedule': 'constant'}",
         "",
         "--out a b;--data x 0.25 3;--steps 7;--rate 0.5;--quiet 1;no --checks;--schedule "
         "constant"},
        {"{'steps': 7, 'data': ['x', 'y'], 'checks': false, 'out': null}",
         "--data z --steps=9 --checks",
         "no --out;--data z;--steps 9;--rate 0.0003;no --quiet;--checks 1;--schedule cosine"},
        {"{'steps': '7', 'data': 'x', 'rate': 1, 'quiet': true}", "--no-quiet",
         "no --out;--data x;--steps 7;--rate 1;no --quiet;--checks 1;--schedule cosine"},
        /* of a record: what was given, except for what does not repeat */
        {"{'version': '1', 'options': {'steps': {'value': 8, 'source': 'given'},"
         " 'rate': {'value': 0.1, 'source': 'default'},"
         " 'quiet': {'value': true, 'source': 'given'},"
         " 'checks': {'value': false, 'source': 'file'},"
         " 'MOERT_LOG': {'value': 'info', 'source': 'environment'}}}",
         "", "no --out;no --data;--steps 8;--rate 0.0003;no --quiet;no --checks;--schedule cosine"},
        /* of run.json: the last start */
        {"{'sessions': [{'options': {'steps': {'value': 8, 'source': 'given'}}},"
         " {'options': {'rate': {'value': '0.12345678901234566', 'source': 'given'}}}]}",
         "",
         "no --out;no --data;--steps 100;--rate 0.12345678901234566;no --quiet;--checks 1;"
         "--schedule cosine"},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        assert_int_equal(parse(rows[i].file, rows[i].words), MOERT_OK);
        assert_string_equal(printed(), rows[i].values);
    }
}

TEST(test_a_wrong_file_is_named_with_its_option) {
    static const struct {
        const char *file;
        moert_status status;
        const char *message;
    } rows[] = {
        {"{'stesp': 7}", MOERT_ERROR_USAGE, "unknown option --stesp; did you mean --steps?"},
        {"{'steps': 0}", MOERT_ERROR_USAGE, "--steps 0: expected an integer 1..5000"},
        {"{'steps': 1.5}", MOERT_ERROR_USAGE, "--steps 1.5: expected an integer 1..5000"},
        {"{'steps': [1, [2]]}", MOERT_ERROR_USAGE, "'steps' holds an array in an array"},
        {"{'steps': {'a': 1}}", MOERT_ERROR_USAGE,
         "'steps' is an object; expected a value or an array of values"},
        {"{'options': {'steps': {'source': 'given'}}}", MOERT_ERROR_USAGE,
         "the record of 'steps' has no 'value'"},
        {"{'stesp': null}", MOERT_ERROR_USAGE, "unknown option --stesp"},
        {"{'sessions': []}", MOERT_ERROR_USAGE, "unknown option --sessions"},
        {"{'quiet': 2}", MOERT_ERROR_USAGE, "--quiet=2: expected 0 or 1"},
        {"{'schedule': true}", MOERT_ERROR_USAGE, "--schedule 1: expected constant|cosine"},
        {"{'steps': 7", MOERT_ERROR_FORMAT, "the file of options is not valid JSON"},
        {"[]", MOERT_ERROR_FORMAT, "the file of options is JSON, but not an object"},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        assert_int_equal(parse(rows[i].file, ""), rows[i].status);
        assert_non_null(strstr(moert_last_error(), in_directory("options.json")));
        assert_non_null(strstr(moert_last_error(), rows[i].message));
    }
}

TEST(test_a_record_gives_the_values_and_sources_that_it_was_made_of) {
    char *text;
    assert_int_equal(parse("{'steps': 7, 'rate': 0.12345678901234566}", "--data x y --quiet"),
                     MOERT_OK);
    const char *before = owned(strdup(printed()), free);
    values.schedule = 0; /* as if derived from the data */
    assert_int_equal(moert_option_record(&command, &text), MOERT_OK);
    owned(text, free);
    static const char *const sources[] = {"\"steps\": {\n   \"value\": 7,\n   \"source\": \"file\"",
                                          "\"rate\": {\n   \"value\": \"0.12345678901234566\"",
                                          "\"checks\": {\n   \"value\": true,\n   \"source\": "
                                          "\"default\"",
                                          "\"value\": \"constant\",\n   \"source\": \"derived\"",
                                          "\"value\": true,\n   \"source\": \"given\"",
                                          "\"command\": [\n  \"program\",\n  \"--data\""};
    for (size_t i = 0; i < MOERT_COUNT(sources); i++)
        assert_non_null(strstr(text, sources[i]));
    assert_int_equal(parse(text, "--quiet"), MOERT_OK);
    assert_string_equal(printed(), before);
}

static int release(void **state) {
    moert_options_free(table, COUNT);
    return remove_test_directory(state);
}

TESTS(make_test_directory, release)
