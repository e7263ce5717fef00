/* The program and its options, for a run's record (train/run_file.h). */
#pragma once

#include "base/error.h"
#include "tools/common/options.h"

/*
 * *text = {"version", "commit", "command": [words], "options": {name: {"value", "source"}}}, to be
 * freed by the caller. A source is "given" (on the command line), "default", "derived" (from the
 * data, the model or the memory) or, of MOERT_* variables, "environment". Errors: ERROR_MEMORY.
 */
moert_status moert_train_record(const moert_command *command, char **text);
