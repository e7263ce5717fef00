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
    bool any_variables; /* run() reports ranks that differ in MOERT_* variables */
} moert_program;

/* Runs the program and returns main's exit code. Refuses ranks that differ in options, or in
 * variables that all must share. */
int moert_program_main(const moert_program *program, int argc, char **argv);

/* Defines main() for a file that has a table `options` and a function run(); `check` may be
 * NULL. */
#define MOERT_PROGRAM_MAIN(synopsis, about, check)                                                 \
    int main(int argc, char **argv) {                                                              \
        const moert_program program = {synopsis, about, options, MOERT_COUNT(options),             \
                                       check,    run,   false};                                    \
        return moert_program_main(&program, argc, argv);                                           \
    }

/* Writes what is left in stdout's buffer. ERROR_IO if any output was lost, now or earlier. The
 * frame calls it last. */
moert_status moert_program_flush(void);

/* Prints to stdout on rank 0 only. */
void moert_program_say(const moert_context *context, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Stores the chosen precisions in the model's config. */
void moert_program_compute(const moert_compute_choice *choice, moert_model_config *config);
