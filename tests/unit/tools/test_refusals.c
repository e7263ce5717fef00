// run: check=1,2 all=4
/*
 * Refusals of programs, in this process: each row of refusals.txt is a command line that a program
 * must refuse on all ranks with the right exit code, one message and no file.
 * tests/e2e/bad_input.sh runs some rows of each kind as commands of a shell.
 */
#include <unistd.h>

#include "base/log.h"
#include "support/files.h"
#include "support/program.h"

static const struct {
    const char *name;
    const moert_program *program;
} programs[] = {{"layer", &moert_layer_program},
                {"op", &moert_op_program},
                {"train", &moert_train_program},
                {"tune", &moert_tune_program}};

/* Words that several rows use; wordexp() replaces $NAME by them. */
static const struct {
    const char *name, *words;
} names[] = {
    {"LAYER", "tests/golden/layer/mixtral-a"},
    {"MODEL", "tests/golden/model/mixtral-tiny"},
    {"LAST", "$DIR/run/checkpoints/step-00000002"},
    {"SIZES", "--hidden 32 --intermediate 32 --heads 2 --batch 4 --length 32 --steps 2"},
    {"TEXT", "--data LICENSE $SIZES"},
    {"GO_ON", "$TEXT --steps 3 --out $OUT/run"},
    {"REPLAY", "--model $MODEL --tokens $MODEL/expected.safetensors"},
    {"IO", "--input $LAYER/input.safetensors --output $OUT/y.safetensors"},
    {"EDGE", "--input tests/golden/quant/mxfp8-e4m3-rceil-edge-40x96.safetensors"},
    {"MATRIX", "$EDGE --output $OUT/q.safetensors"},
    {"BROKEN", "--input $DIR/broken.safetensors --output $OUT/d.safetensors"},
    {"GEMM", "ends:I32[1]:4 x:F32[4,8]:1 weight:F32[1,8,8]:1"},
};

static size_t warnings;
static void count_warnings(void *user, int level, const char *line) {
    (void)user, (void)line;
    warnings += level <= MOERT_LOG_WARN;
}

/* Writes $DIR/broken.safetensors with the given tensors. Adds the usual tensors of a GLU whose
 * names are not given. */
static void pack(const char *tensors) {
    static const char *const usual[] = {"padded_offsets:I32[2]:32,64", "a:U8[64,64]:0",
                                        "sfa:U8[512]:0", "b:U8[2,64,64]:0", "sfb:U8[2,512]:0"};
    const char *command = "$(dirname $PROGRAM)/../../pack $DIR/broken.safetensors";
    for (size_t u = 0; u < MOERT_COUNT(usual); u++) {
        const char *name = titled("%.*s", (int)strcspn(usual[u], ":"), usual[u]);
        if (strstr(tensors, titled(" %s:", name)) == NULL &&
            strstr(tensors, titled(" -%s", name)) == NULL)
            command = titled("%s %s", command, usual[u]);
    }
    assert_true(run_shell(titled("%s%s", command, tensors[1] != '-' ? tensors : "")));
}

/* True if the program refuses the words as the row expects; otherwise prints the program's exit
 * code and message. */
static bool refuses(const char *name, const char *words, int expected, const char *message) {
    const moert_program *program = NULL;
    for (size_t i = 0; i < MOERT_COUNT(programs); i++)
        program = strcmp(name, programs[i].name) == 0 ? programs[i].program : program;
    assert_true(run_shell("rm -rf ${OUT:?} && mkdir $OUT"));
    warnings = 0;
    const moert_status status = run_program(program, words);
    set_variable("MOERT_BACKEND", NULL); /* of --backend */
    const int code = status == MOERT_OK ? 0 : status == MOERT_ERROR_USAGE ? 2 : 1;
    bool right = code == expected && matches(moert_last_error(), message) && warnings == 0;
    if (!right)
        print_error("%s %s\n  gives %d, %zu warnings and '%s'\n  not %d and '%s'\n", name, words,
                    code, warnings, moert_last_error(), expected, message);
    const bool empty = run_shell("[ -z \"$(ls -A $OUT)\" ] || ! ls -R $OUT >&2");
    if (!empty)
        print_error("%s %s\n  leaves files\n", name, words);
    return on_all(right) && empty;
}

/* Tests a row if the row is for this number of ranks; returns whether the program refuses the row's
 * words. */
static bool passes(char *row) {
    char ranks[16], program[16], *message = strstr(row, " => "), *tensors = strstr(row, " <");
    int code, words = 0;
    assert_non_null(message);
    *message = '\0';
    assert_int_equal(sscanf(row, "%15s %d %15s %n", ranks, &code, program, &words), 3);
    if (strcmp(ranks, "-") != 0 && strstr(ranks, titled("%zu", test_ranks)) == NULL)
        return true;
    if (tensors != NULL) {
        *tensors = '\0';
        pack(tensors + 2);
    }
    return refuses(program, row + words, code, message + 4);
}

TEST(test_a_run_that_is_not_refused_leaves_checkpoints) {
    ASSERT_OK_ON_ALL(run_program(&moert_train_program, "$TEXT --save-every 1 --out $DIR/run"));
    assert_true(run_shell("tests/support/broken_files.sh $DIR"));
}

TEST(test_programs_refuse_bad_input) {
    char *rest, *file = read_file("tests/unit/tools/refusals.txt", NULL);
    size_t rows = 0, failed = 0;
    for (char *row = strtok_r(file, "\n", &rest); row != NULL; row = strtok_r(NULL, "\n", &rest)) {
        const size_t own = owned_count();
        if (row[0] == '#')
            continue;
        rows++;
        failed += !passes(row);
        release_since(own);
    }
    assert_true(rows > 150);
    assert_int_equal(failed, 0);
}

TEST(test_refused_runs_leave_no_checkpoint_and_no_temporary_file) {
    assert_int_equal(count_files(in_directory("run/checkpoints"), ""), 2);
    assert_true(run_shell("[ -z \"$(find $DIR -name \\*.tmp -o -name \\*.partial)\" ]"));
}

static int begin(void **state) {
    if (open_context_and_shared_directory(state) != 0)
        return -1;
    for (size_t i = 0; i < MOERT_COUNT(names); i++)
        name_words(names[i].name, names[i].words);
    moert_log_set_sink(count_warnings, NULL);
    return 0;
}

MPI_TESTS(begin, close_context_and_shared_directory)
