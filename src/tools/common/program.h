/*
 * main() of every program: starts MPI, parses options and creates a context; after a failure,
 * prints one message and returns the exit code.
 *
 * Exit codes: 0 done, 2 bad usage (options, variables), 1 everything else. If all ranks know of a
 * failure, only rank 0 exits with the failure's code, and the others exit with 0. The reason is
 * that mpirun of Open MPI 5.0.7 sometimes hangs when several ranks exit with an error.
 */
#pragma once

#include "base/memory.h"
#include "context/context.h"
#include "io/model_config.h"
#include "tools/common/options.h"

typedef struct moert_program {
    const char *synopsis, *about;
    const moert_option *options; /* besides those of every program, such as --help */
    size_t option_count;
    /* checks the parsed options; must return the same result on each rank; may be NULL. The command
     * lives until the program ends */
    moert_status (*check)(const moert_command *command);
    moert_status (*run)(moert_context *context);
    /* MOERT_* variables may differ between ranks; run() reports the differences */
    bool any_variables;
    /* handles a first argument that is not an option, and returns the number of options that the
     * program then has; may be NULL */
    size_t (*take_word)(int *argc, char ***argv);
    /* *path = the file of options to read if --config is not given (tools/common/option_file.h), or
     * NULL; the caller frees it. May be NULL */
    moert_status (*option_file)(char **path);
    /* whether an option is read from the record of a run, after the arguments have been parsed; may
     * be NULL */
    bool (*repeats)(const char *name);
} moert_program;

/* The programs whose error messages for bad options a unit test collects. */
extern const moert_program moert_generate_program, moert_layer_program, moert_op_program,
    moert_train_program, moert_tune_program;

/* Runs the program and returns main's exit code. Fails if ranks differ in options, or in variables
 * that must be equal on all ranks. */
int moert_program_main(const moert_program *program, int argc, char **argv);

/* Defines main() as a weak symbol, so that a test can link several programs. */
#define MOERT_MAIN(program)                                                                        \
    __attribute__((weak)) int main(int argc, char **argv) {                                        \
        return moert_program_main(&(program), argc, argv);                                         \
    }

/* Defines the program of a file that has a table `options` and a function run(). `check` may be
 * NULL. */
#define MOERT_PROGRAM_OF(synopsis, about, check)                                                   \
    { synopsis, about, options, MOERT_COUNT(options), check, run, false, NULL, NULL, NULL }
#define MOERT_PROGRAM_MAIN(synopsis, about, check)                                                 \
    static const moert_program program = MOERT_PROGRAM_OF(synopsis, about, check);                 \
    MOERT_MAIN(program)

/* Every program calls this function first. It makes a write above `ulimit -f` fail with EFBIG
 * instead of killing the process. It also records failed allocations of jansson, so that they
 * become errors. */
void moert_program_begin(void);

/* Writes the rest of stdout's buffer. ERROR_IO if any output was lost, now or earlier.
 * moert_program_main calls it last. */
moert_status moert_program_flush(void);

/* The exit code of a program that ends with this status. */
int moert_program_code(moert_status status);

/* Prints to stdout, on rank 0 only. */
void moert_program_say(const moert_context *context, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Stores the chosen precisions in the model's config. Errors: those of moert_recipe_read. */
moert_status moert_program_compute(moert_compute_choice *choice, moert_model_config *config);
