/*
 * Long options of the programs. A table describes them:
 *
 *   static const moert_option table[] = {
 *       {.help = "Training"},
 *       {"steps", MOERT_OPTION_UINT, &steps, "1000", "1..", "optimizer steps"},
 *       {"rate", MOERT_OPTION_FLOAT, &rate, "3e-4", "0..1", "learning rate"},
 *       {"schedule", MOERT_OPTION_CHOICE, &schedule, "cosine", "constant|cosine", "of the rate"},
 *   };
 *
 * Accepts --name value and --name=value, and flags as --name and --no-name. A LIST option takes all
 * words up to the next option, and may be given more than once. A word that begins with -- is never
 * a value of --name; write --name=value.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/error.h"
#include "nn/optimizer.h"
#include "tools/common/recipe_file.h"

/* Words of MOERT_OPTION_CHOICE for moert_precision of the dense layers, moert_dispatch and
 * moert_combine. */
#define MOERT_DENSE_WORDS    "f32|bf16"
#define MOERT_DISPATCH_WORDS "f32|mxfp8|bf16"
#define MOERT_COMBINE_WORDS  "f32|bf16"
#define MOERT_AUX_WORDS      "hugging-face|megatron|sequence" /* in the order of moert_aux_form */
#define MOERT_SAVE_WORDS     "off|wait|skip"                  /* in the order of moert_save_mode */

/* The chosen words, as indices into the lists of words above. MOERT_COMPUTE_OPTIONS expands to the
 * table rows that set this struct. `others` is the help's name for the GEMMs of dense layers. */
typedef struct moert_compute_choice {
    const char *precision; /* of moert_recipe_read */
    unsigned dense, dispatch, combine;
} moert_compute_choice;
/* clang-format off */
#define MOERT_COMPUTE_OPTIONS(choice, others)                                                      \
    {"precision", MOERT_OPTION_STRING, &(choice).precision, "f32", MOERT_PRECISION_WORDS "|FILE",  \
     "operands of the experts' GEMMs; FILE: a recipe in JSON, as docs/guide.md describes"},        \
    {"dense", MOERT_OPTION_CHOICE, &(choice).dense, "f32", MOERT_DENSE_WORDS,                      \
     "operands of " others},                                                                       \
    {"dispatch", MOERT_OPTION_CHOICE, &(choice).dispatch, "f32", MOERT_DISPATCH_WORDS,             \
     "rows of x and dy on their way to the experts"},                                              \
    {"combine", MOERT_OPTION_CHOICE, &(choice).combine, "f32", MOERT_COMBINE_WORDS,                \
     "rows of y and dx on their way back"}
/* clang-format on */

/* The table rows that set a moert_memory_choice (io/model_config.h). */
/* clang-format off */
#define MOERT_MEMORY_OPTIONS(choice, most)                                                         \
    {"memory", MOERT_OPTION_STRING, &(most), NULL, "BYTES",                                        \
     "bytes that a rank may take, such as 80G; default: its part of 98 % of its GPU's memory or, " \
     "on CPUs, of what its host has left"},                                                        \
    {"recompute", MOERT_OPTION_CHOICE, &(choice).recompute, "none", MOERT_RECOMPUTE_WORDS,         \
     "what the backward computes again, so that it need not be kept: nothing, the experts' first " \
     "projections, whole layers, or the least that fits --memory, with --loss-chunk unless it is " \
     "given; no bit of the results changes"},                                                      \
    {"loss-chunk", MOERT_OPTION_UINT, &(choice).loss_chunk, "0", "0..1000000000",                  \
     "compute logits and loss for this number of tokens at a time, a multiple of 64; 0 = for all " \
     "tokens of a rank"},                                                                          \
    {"optimizer", MOERT_OPTION_CHOICE, &(choice).optimizer, "adamw", MOERT_OPTIMIZER_WORDS,        \
     "adamw has two moments for each weight; sgd, with momentum, has one"},                        \
    {"moments", MOERT_OPTION_CHOICE, &(choice).moments, "f32", MOERT_STATE_WORDS,                  \
     "the optimizer's moments; bf16, rounded at random so that their mean is right, halves them"}, \
    {"gradients", MOERT_OPTION_CHOICE, &(choice).gradients, "f32", MOERT_STATE_WORDS,          \
     "gradients of the layers' parameters; bf16, rounded after each micro-batch, halves them"},    \
    {"imbalance", MOERT_OPTION_FLOAT, &(choice).imbalance, "1", "1..1000",                         \
     "rows of a rank that the estimate of the memory assumes, relative to balanced routing"}
/* clang-format on */

/* X(TYPE, the value's name in --help if the row's `limits` do not give one, type of *target, value
 * of *target if the option is not given and has no default) */
/* clang-format off */
#define MOERT_OPTION_TABLE(X)                                                                      \
    X(HEADING, "", char, 0)       /* a heading in the usage text; only `help` is set */            \
    X(STRING, "TEXT", const char *, NULL)        /* from argv, or the default; limits: its name */ \
    X(LIST, "WORD...", moert_option_list, (moert_option_list){0}) /* limits: its name in --help */ \
    X(UINT, "N", size_t, SIZE_MAX)               /* limits "low..high"; either may be absent */    \
    X(FLOAT, "X", double, NAN)                   /* limits "low..high", as for UINT */             \
    X(FLAG, "", bool, false)                     /* default "0" or "1" */                          \
    X(CHOICE, "", unsigned, 0)                   /* index in limits, "word|word|..." */
/* clang-format on */

typedef enum moert_option_type {
#define MOERT_OPTION_ENUM(type, shown, of, none) MOERT_OPTION_##type,
    MOERT_OPTION_TABLE(MOERT_OPTION_ENUM)
#undef MOERT_OPTION_ENUM
} moert_option_type;

/* The values of a list, in order; free(words) when done. NULL if empty. */
typedef struct moert_option_list {
    const char **words;
    size_t count;
} moert_option_list;

typedef struct moert_option {
    const char *name; /* without dashes; NULL for a heading */
    moert_option_type type;
    void *target;
    /* the default as text. NULL: the table above defines the value for "not given" */
    const char *standard;
    const char *limits; /* NULL = none */
    const char *help;
} moert_option;

/*
 * Stores the defaults, then the arguments argv[1] to argv[argc - 1]; strings stay owned by argv.
 * Sets *help if --help or -h was given; arguments after --help are ignored. Errors: ERROR_USAGE
 * (unknown option, with the nearest match; missing, malformed or illegal value), ERROR_MEMORY.
 */
moert_status moert_options_parse(const moert_option *table, size_t count, int argc, char **argv,
                                 bool *help);

/* Frees the words of the table's lists, which are then empty. */
void moert_options_free(const moert_option *table, size_t count);

/* The arguments of a program, and the table that parsed them. */
typedef struct moert_command {
    const moert_option *table;
    size_t count;
    int argc;
    char **argv;
    size_t from_file; /* words after argv[0] that come from a file (tools/common/option_file.h) */
} moert_command;

/* The name of the first given option whose target lies in object[bytes]; NULL if no given option
 * does. */
const char *moert_options_given(const moert_command *command, const void *object, size_t bytes);

/* Whether a file, and no argument, has given an option whose target lies in object[bytes]. */
bool moert_options_of_file(const moert_command *command, const void *object, size_t bytes);

/* The value of an option as text, which may lie in buffer[bytes] (64 bytes suffice); NULL if the
 * option is not given or is an unset flag. The option must not be a LIST. */
const char *moert_option_text(const moert_option *option, char *buffer, size_t bytes);

/* text[bytes] = the shortest text from which strtod reads the same value. 32 bytes suffice. */
void moert_option_float_text(double value, char *text, size_t bytes);

/* Prints each option as "--name value" or, if it has no value, "no --name". A 0 byte ends each of
 * them. */
void moert_options_print(const moert_option *table, size_t count, FILE *file);

/* Prints the usage text: `synopsis` (such as "moert-train [OPTION...]"), `about`, then the
 * table. */
void moert_options_usage(FILE *file, const char *synopsis, const char *about,
                         const moert_option *table, size_t count);
