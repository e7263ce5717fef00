/*
 * The frame of every program: MPI, options, a context, one message and the right exit code on
 * failure.
 *
 * Exit codes: 0 done, 2 bad usage (options, variables), 1 everything else. If all ranks know of a
 * failure, rank 0 alone exits with its code and the others with 0: mpirun of Open MPI 5.0.7
 * sometimes hangs when several ranks exit with an error.
 */
#pragma once

#include "base/memory.h"
#include "context/context.h"
#include "io/model_config.h"
#include "tools/common/options.h"

typedef struct moert_program {
    const char *synopsis, *about;
    const moert_option *options;
    size_t option_count;
    /* checks the parsed options, with the same result on each rank; may be NULL */
    moert_status (*check)(int argc, char **argv);
    moert_status (*run)(moert_context *context);
    bool any_variables; /* ranks may differ in MOERT_* variables; run() reports them */
    /* takes a first argument that is no option, and returns the number of options that then apply;
     * may be NULL */
    size_t (*take_word)(int *argc, char ***argv);
} moert_program;

/* The programs whose refusals a unit test collects. */
extern const moert_program moert_layer_program, moert_op_program, moert_train_program,
    moert_tune_program;

/* Runs the program and returns main's exit code. Refuses ranks that differ in options, or in
 * variables that all must share. */
int moert_program_main(const moert_program *program, int argc, char **argv);

/* Defines main(). It is weak, so that a test can link several programs. */
#define MOERT_MAIN(program)                                                                        \
    __attribute__((weak)) int main(int argc, char **argv) {                                        \
        return moert_program_main(&(program), argc, argv);                                         \
    }

/* The program of a file that has a table `options` and a function run(); `check` may be NULL. */
#define MOERT_PROGRAM_OF(synopsis, about, check)                                                   \
    { synopsis, about, options, MOERT_COUNT(options), check, run, false, NULL }
#define MOERT_PROGRAM_MAIN(synopsis, about, check)                                                 \
    static const moert_program program = MOERT_PROGRAM_OF(synopsis, about, check);                 \
    MOERT_MAIN(program)

/* Every program calls this first. A write above `ulimit -f` then fails with EFBIG instead of
 * killing the process, and jansson's failed allocations are recorded, so that they become
 * errors. */
void moert_program_begin(void);

/* Writes what is left in stdout's buffer. ERROR_IO if any output was lost, now or earlier. The
 * frame calls it last. */
moert_status moert_program_flush(void);

/* The exit code of a program that ends with this status. */
int moert_program_code(moert_status status);

/* Prints to stdout on rank 0 only. */
void moert_program_say(const moert_context *context, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Stores the chosen precisions in the model's config. */
void moert_program_compute(const moert_compute_choice *choice, moert_model_config *config);
