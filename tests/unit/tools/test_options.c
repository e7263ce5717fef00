// run: check=1 all=1san device=0
/* Long options from a table: every type, and every kind of illegal use. */
#include "support/test.h"
#include "tools/common/options.h"

static struct values {
    const char *out;
    moert_option_list data;
    size_t steps, seed;
    double rate, shift;
    bool reproducible, quiet;
    unsigned schedule;
} values;

static const moert_option table[] = {
    {.help = "Run"},
    {"out", MOERT_OPTION_STRING, &values.out, NULL, NULL, "directory of the results"},
    {"data", MOERT_OPTION_LIST, &values.data, NULL, "PATH...", "files or directories of text"},
    {"steps", MOERT_OPTION_UINT, &values.steps, "100", "1..5000", "optimizer steps"},
    {"seed", MOERT_OPTION_UINT, &values.seed, "7", NULL, "seed of all random numbers"},
    {.help = "Learning"},
    {"rate", MOERT_OPTION_FLOAT, &values.rate, "3e-4", "0..1", "learning rate"},
    {"shift", MOERT_OPTION_FLOAT, &values.shift, "0", NULL, "any number"},
    {"reproducible", MOERT_OPTION_FLAG, &values.reproducible, "1", NULL, "same bits"},
    {"quiet", MOERT_OPTION_FLAG, &values.quiet, "0", NULL, "no lines on the console"},
    {"schedule", MOERT_OPTION_CHOICE, &values.schedule, "cosine", "constant|cosine|cos",
     "course of the rate"},
};
enum { COUNT = MOERT_COUNT(table) };

/* Parses words that are separated by spaces. */
static moert_status parse(const char *line, bool *help) {
    char *argv[16] = {"program"}, *rest, *words = owned(strdup(line), free);
    int argc = 1;
    free(values.data.words);
    values = (struct values){0};
    for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    return moert_options_parse(table, COUNT, argc, argv, help);
}

/* Returns all values as words of a command line that would set them, one word per line. */
static const char *printed(void) {
    char *text;
    size_t bytes;
    FILE *file = open_memstream(&text, &bytes);
    moert_options_print(table, COUNT, file);
    assert_int_equal(fclose(file), 0);
    owned(text, free);
    for (size_t i = 0; i < bytes; i++)
        text[i] = text[i] == '\0' ? '\n' : text[i];
    return text;
}

TEST(test_values_are_those_of_the_words_or_the_defaults) {
    static const struct {
        const char *words, *values;
    } rows[] = {
        {"", "no --out\nno --data\n--steps 100\n--seed 7\n--rate 0.0003\n--shift 0\n"
             "--reproducible 1\nno --quiet\n--schedule cosine\n"},
        {"--steps 5000 --rate=0.5 --out=--x=y --schedule constant --shift -2.5 --quiet=1",
         "--out --x=y\nno --data\n--steps 5000\n--seed 7\n--rate 0.5\n--shift -2.5\n"
         "--reproducible 1\n--quiet 1\n--schedule constant\n"},
        {"--data a b --quiet --no-reproducible --data=c --schedule cos --shift 0.30000000000000004",
         "no --out\n--data a b c\n--steps 100\n--seed 7\n--rate 0.0003\n"
         "--shift 0.30000000000000004\nno --reproducible\n--quiet 1\n--schedule cos\n"},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        bool help = true;
        ASSERT_OK(parse(rows[i].words, &help));
        assert_false(help);
        assert_string_equal(printed(), rows[i].values);
    }
}

TEST(test_the_largest_integer_is_a_value_and_prints_as_a_default_of_other_options) {
    bool help;
    ASSERT_OK(parse("--seed=18446744073709551615", &help));
    assert_true(values.seed == SIZE_MAX && values.steps == 100 && values.rate == 3e-4);
    assert_non_null(strstr(printed(), "no --seed\n"));
}

TEST(test_bad_words_get_one_clear_line) {
    static const char *const rows[][2] = {
        {"--steps abc", "--steps abc: expected an integer 1..5000"},
        {"--steps 0", "--steps 0: expected an integer 1..5000"},
        {"--steps 5001", "--steps 5001: expected an integer 1..5000"},
        {"--steps 12x", "--steps 12x: expected an integer 1..5000"},
        {"--steps -1", "--steps -1: expected an integer 1..5000"},
        {"--steps=", "--steps : expected an integer 1..5000"},
        {"--seed 99999999999999999999", "--seed 99999999999999999999: expected an integer 0.."},
        {"--rate 1.5", "--rate 1.5: expected a number 0..1"},
        {"--rate nan", "--rate nan: expected a number 0..1"},
        {"--shift inf", "--shift inf: expected a finite number"},
        {"--schedule con", "--schedule con: expected constant|cosine|cos"},
        {"--quiet=yes", "--quiet=yes: expected 0 or 1"},
        {"--steps", "--steps needs a value"},
        {"--steps --quiet", "--steps needs a value"},
        {"--data", "--data needs a value"},
        {"--data a --steps", "--steps needs a value"},
        {"file", "unexpected word 'file'; options begin with --"},
        {"--quiet -v", "unexpected word '-v'; options begin with --"},
        {"--no-steps", "unknown option --no-steps; did you mean --steps?"},
        {"--step 3", "unknown option --step; did you mean --steps?"},
        {"--shcedule=cosine", "unknown option --shcedule; did you mean --schedule?"},
        {"--xylophone", "unknown option --xylophone; --help lists the options"},
        {"--", "unknown option --; --help lists the options"},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        bool help;
        assert_int_equal(parse(rows[i][0], &help), MOERT_ERROR_USAGE);
        assert_string_equal(moert_last_error(), rows[i][1]);
        assert_null(values.data.words);
    }
}

TEST(test_help_is_noticed_and_prints_the_table) {
    bool help = false;
    char *text = NULL;
    size_t bytes = 0;
    ASSERT_OK(parse("--steps 3 --help --nonsense", &help));
    assert_true(help);
    FILE *file = open_memstream(&text, &bytes);
    moert_options_usage(file, "program [OPTION...]", "Does things.", table, COUNT);
    fclose(file);
    const char *expected[] = {
        "usage: program [OPTION...]\nDoes things.\n\nRun\n",
        "\nLearning\n",
        "  --steps N                   optimizer steps [1..5000] (default 100)",
        "  --data PATH...              files or directories of text\n",
        ("  --schedule constant|cosine|cos\n                              course of the rate "
         "(default cosine)"),
        "(default on; --no-reproducible)\n",
        "  --help                      this text\n"};
    for (size_t i = 0; i < MOERT_COUNT(expected); i++)
        if (strstr(text, expected[i]) == NULL)
            fail_msg("'%s' is missing from:\n%s", expected[i], text);
    free(text);
}

static int release(void **state) {
    (void)state;
    free(values.data.words);
    return 0;
}

TEST(test_the_first_given_option_of_an_object_is_found) {
    char *argv[] = {"program",    "--data",  "seed", "--rate=0.1",
                    "--no-quiet", "--steps", "3",    "--seed=4"};
    const moert_command all = {table, COUNT, MOERT_COUNT(argv), argv, 0},
                        few = {table, COUNT, 5, argv, 0};
    const void *sizes = &values.steps;
    const size_t bytes = sizeof values.steps + sizeof values.seed;
    assert_string_equal(moert_options_given(&all, sizes, bytes), "steps");
    assert_null(moert_options_given(&few, sizes, bytes));
    assert_string_equal(moert_options_given(&all, &values, sizeof values), "data");
}

TESTS(NULL, release)
