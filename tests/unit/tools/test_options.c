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
    {"data", MOERT_OPTION_LIST, &values.data, NULL, NULL, "files or directories of text"},
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

static moert_status parse(const char *const *words, bool *help) {
    char *argv[16] = {"program"};
    int argc = 1;
    free(values.data.words);
    values = (struct values){0};
    for (; words[argc - 1] != NULL; argc++)
        argv[argc] = (char *)words[argc - 1];
    return moert_options_parse(table, COUNT, argc, argv, help);
}

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void accept(const char *const *words) {
    bool help = true;
    if (parse(words, &help) != MOERT_OK)
        fail_msg("%s: %s", words[0], moert_last_error());
    assert_false(help);
}

static void refuse(const char *const *words, const char *message) {
    bool help;
    assert_int_equal(parse(words, &help), MOERT_ERROR_USAGE);
    assert_string_equal(moert_last_error(), message);
}

TEST(test_defaults_come_from_the_table) {
    accept((const char *const[]){NULL});
    assert_null(values.out);
    assert_int_equal(values.data.count, 0);
    assert_int_equal(values.steps, 100);
    assert_int_equal(values.seed, 7);
    assert_true(values.rate == 3e-4);
    assert_true(values.reproducible);
    assert_false(values.quiet);
    assert_int_equal(values.schedule, 1);
}

TEST(test_values_are_printed_as_they_could_be_given) {
    static const char expected[] = "no --out\0--data a b c\0no --steps\0--seed 7\0--rate 0.0003\0"
                                   "--shift 0.30000000000000004\0no --reproducible\0--quiet 1\0"
                                   "--schedule cos";
    char *text;
    size_t bytes;
    accept(WORDS("--data", "a", "b", "--quiet", "--no-reproducible", "--data", "c", "--schedule",
                 "cos", "--shift", "0.30000000000000004"));
    values.steps = SIZE_MAX; /* as in programs whose default depends on other options */
    FILE *file = open_memstream(&text, &bytes);
    moert_options_print(table, COUNT, file);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(bytes, sizeof expected);
    assert_memory_equal(text, expected, bytes);
    free(text);
}

TEST(test_values_follow_as_a_word_or_after_an_equals_sign) {
    accept(WORDS("--steps", "5000", "--rate=0.5", "--out=--x=y", "--schedule", "cos", "--shift",
                 "-2.5", "--seed=18446744073709551615"));
    assert_int_equal(values.steps, 5000);
    assert_true(values.rate == 0.5 && values.shift == -2.5);
    assert_string_equal(values.out, "--x=y");
    assert_int_equal(values.schedule, 2);
    assert_true(values.seed == SIZE_MAX);
}

TEST(test_lists_collect_words_and_repeat) {
    accept(WORDS("--data", "a", "b", "--quiet", "--data=c"));
    assert_int_equal(values.data.count, 3);
    assert_string_equal(values.data.words[0], "a");
    assert_string_equal(values.data.words[1], "b");
    assert_string_equal(values.data.words[2], "c");
    assert_true(values.quiet);
}

TEST(test_flags_can_be_turned_off) {
    accept(WORDS("--no-reproducible", "--quiet=1"));
    assert_false(values.reproducible);
    assert_true(values.quiet);
    refuse(WORDS("--quiet=yes"), "--quiet=yes: expected 0 or 1");
    refuse(WORDS("--no-steps"), "unknown option --no-steps; did you mean --steps?");
}

TEST(test_bad_values_get_one_clear_line) {
    refuse(WORDS("--steps", "abc"), "--steps abc: expected an integer 1..5000");
    refuse(WORDS("--steps", "0"), "--steps 0: expected an integer 1..5000");
    refuse(WORDS("--steps", "5001"), "--steps 5001: expected an integer 1..5000");
    refuse(WORDS("--steps", "12x"), "--steps 12x: expected an integer 1..5000");
    refuse(WORDS("--steps", "-1"), "--steps -1: expected an integer 1..5000");
    refuse(WORDS("--steps="), "--steps : expected an integer 1..5000");
    refuse(WORDS("--seed", "99999999999999999999"),
           "--seed 99999999999999999999: expected an integer 0..");
    refuse(WORDS("--rate", "1.5"), "--rate 1.5: expected a number 0..1");
    refuse(WORDS("--rate", "nan"), "--rate nan: expected a number 0..1");
    refuse(WORDS("--shift", "inf"), "--shift inf: expected a finite number");
    refuse(WORDS("--schedule", "con"), "--schedule con: expected constant|cosine|cos");
}

TEST(test_missing_values_and_stray_words_are_named) {
    refuse(WORDS("--steps"), "--steps needs a value");
    refuse(WORDS("--steps", "--quiet"), "--steps needs a value");
    refuse(WORDS("--data"), "--data needs a value");
    refuse(WORDS("--data", "a", "--steps"), "--steps needs a value");
    assert_null(values.data.words);
    refuse(WORDS("file"), "unexpected word 'file'; options begin with --");
    refuse(WORDS("--quiet", "-v"), "unexpected word '-v'; options begin with --");
}

TEST(test_unknown_options_suggest_the_nearest) {
    refuse(WORDS("--step", "3"), "unknown option --step; did you mean --steps?");
    refuse(WORDS("--shcedule=cosine"), "unknown option --shcedule; did you mean --schedule?");
    refuse(WORDS("--xylophone"), "unknown option --xylophone; --help lists the options");
    refuse(WORDS("--"), "unknown option --; --help lists the options");
}

TEST(test_help_is_noticed_and_prints_the_table) {
    bool help = false;
    char *text = NULL;
    size_t bytes = 0;
    ASSERT_OK(parse(WORDS("--steps", "3", "--help", "--nonsense"), &help));
    assert_true(help);
    FILE *file = open_memstream(&text, &bytes);
    moert_options_usage(file, "program [OPTION...]", "Does things.", table, COUNT);
    fclose(file);
    const char *expected[] = {
        "usage: program [OPTION...]\nDoes things.\n\nRun\n",
        "\nLearning\n",
        "  --steps N                   optimizer steps [1..5000] (default 100)",
        "  --data WORD...              files or directories of text\n",
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
    const int argc = MOERT_COUNT(argv);
    const void *sizes = &values.steps;
    const size_t bytes = sizeof values.steps + sizeof values.seed;
    assert_string_equal(moert_options_given(table, COUNT, argc, argv, sizes, bytes), "steps");
    assert_null(moert_options_given(table, COUNT, 5, argv, sizes, bytes));
    assert_string_equal(moert_options_given(table, COUNT, argc, argv, &values, sizeof values),
                        "data");
}

TESTS(NULL, release)
