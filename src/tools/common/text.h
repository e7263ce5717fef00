/* Continues texts with a model, and prints the tokens on rank 0 as they are drawn. */
#pragma once

#include "context/context.h"
#include "model/generate.h"

typedef struct moert_text {
    const int32_t *tokens; /* [count] the beginning, the same on all ranks */
    size_t count, most;    /* `most`: the largest number of new tokens */
    bool bytes;            /* tokens are bytes and are printed as characters, control characters as
                              `?`; otherwise tokens are printed as numbers */
    const int32_t *stop;   /* [stops] tokens that end the text */
    size_t stops;
} moert_text;

/* How long the tokens took. */
typedef struct moert_text_times {
    size_t made;            /* number of new tokens */
    double first_s, rest_s; /* seconds for the first new token, with all tokens before it; and for
                               all other new tokens */
} moert_text_times;

/* Prints the new tokens and a line end. Errors: those of moert_generation_begin and
 * moert_generation_next. Collective. */
moert_status moert_text_continue(moert_context *context, moert_generation *generation,
                                 const moert_text *text, moert_text_times *times);

/* Prints `most` bytes that follow the prompt, with a model whose tokens are bytes. Errors:
 * ERROR_USAGE (an empty prompt), those of moert_text_continue. Collective. */
moert_status moert_text_continue_bytes(moert_context *context, moert_model *model,
                                       const moert_generation_options *options, const char *prompt,
                                       size_t most);

/* tokens[strlen(text)] = the bytes of the text. The caller frees them. Errors: ERROR_MEMORY. */
moert_status moert_text_bytes(const char *text, int32_t **tokens, size_t *count);
