/* Runs moert's programs in this process, on all ranks of the test. Such a run takes a hundredth
 * of the time of a new job. */
#pragma once

#include "support/mpi.h"
#include "tools/common/program.h"

/* Group fixture: test_context, and a directory of rank 0 that all ranks share. In words and shell
 * commands, $DIR is the path of this directory, $OUT that of the directory `out` in it, and
 * $PROGRAM that of the test program. */
int open_context_and_shared_directory(void **state);
int close_context_and_shared_directory(void **state);

/* Lets $NAME stand for `words` in later calls; `words` may contain other names. */
void name_words(const char *name, const char *words);

/* Runs a program with these words of a shell's command line. Collective. */
moert_status run_program(const moert_program *program, const char *words);

/* Runs a command of bash on rank 0; true if it succeeds. Collective. */
bool run_shell(const char *command);

/* True if part of the text matches an extended regular expression. */
bool matches(const char *text, const char *pattern);
