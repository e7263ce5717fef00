/* The program's version and options, for the record of a run (train/run_file.h). */
#pragma once

#include "base/error.h"
#include "tools/common/options.h"

/*
 * *text = {"version", "commit", "command":[words], "options":{NAME:{"value", "source"}}}, which
 * the caller frees. A source is "given" (on the command line), "default", "derived" (from the data,
 * the model or the memory) or, for MOERT_* variables, "environment". Errors: ERROR_MEMORY.
 */
moert_status moert_train_record(const moert_command *command, char **text);
