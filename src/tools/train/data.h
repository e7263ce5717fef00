/* Opens the data that the options of moert-train name. */
#pragma once

#include "data/data.h"
#include "tools/common/options.h"
#include "tools/common/program.h"

typedef struct moert_train_data {
    moert_data *data;
    int32_t *tokens, *targets; /* values from a safetensors file; NULL for other data */
} moert_train_data;

typedef struct moert_train_data_options {
    const moert_option_list *paths; /* words of --data */
    /* the path of --tokens, or NULL; exactly one of paths and token_file must be given */
    const char *token_file;
    unsigned token_bits; /* bits of a token in a raw token file */
    moert_split split;
} moert_train_data_options;

/*
 * Opens the sources at the paths (moert_source_open), or a token file. A token file holds raw
 * integers or, if it is a .safetensors file, the tensor `tokens` [steps,B,S+1] and optionally
 * `targets` [steps,B,S]. Paths may describe a blend: WEIGHT PATH pairs as separate words, the pairs
 * in one word, or a file NAME.json with {"PATH": WEIGHT, ...}, with paths relative to the file's
 * directory. Errors: ERROR_USAGE, ERROR_FORMAT, ...
 */
moert_status moert_train_data_open(const moert_train_data_options *options, moert_train_data *data);
void moert_train_data_close(moert_train_data *data);

/* Prints the number of epochs in `sequences` sequences: of all data, and of each source of a
 * blend. */
void moert_train_data_say(const moert_context *context, const moert_data *data, size_t sequences);
