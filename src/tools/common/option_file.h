/* Options in JSON: a program reads them from a file (--config), and writes them into the record of
 * a run. */
#pragma once

#include "base/error.h"
#include "tools/common/options.h"

/*
 * Puts the options of a file before the command's arguments, as words --NAME=VALUE, so that the
 * arguments take precedence. Leaves out options that the arguments give. The file is an object:
 *
 *   {"steps": 100, "watch": true, "data": ["a", "b"]}   options by name; null: not given; or
 *   {"options": {...}, ...}                             as moert_option_record writes it; or
 *   {"sessions": [..., {"options": {...}, ...}], ...}   the run.json of a run (its last start)
 *
 * From the last two forms, takes the options that were given to the run and for which `repeats`
 * returns true; NULL: all. The caller calls moert_option_file_free, also after an error.
 * Errors, whose message begins with `path`: ERROR_USAGE, ERROR_MEMORY, those of
 * moert_json_read.
 */
typedef bool moert_option_repeats(const char *name);
moert_status moert_option_file_read(const char *path, moert_option_repeats *repeats,
                                    moert_command *command);
void moert_option_file_free(moert_command *command);

/*
 * *text = {"version", "commit", "command":[words], "options":{NAME:{"value", "source"}}}, which
 * the caller frees. A source is "given" (by an argument), "file", "default", "derived" (from the
 * data, the model or the memory) or, for MOERT_* variables, "environment". Errors: ERROR_MEMORY.
 */
moert_status moert_option_record(const moert_command *command, char **text);

/* Prints the program's name, version and commit. */
void moert_option_version(FILE *file, const char *program);
