/*
 * Generates tokens with a model, one after the other. The keys and values of earlier tokens are
 * cached, so a token needs a forward of one token. Where there is no cache (moert_run_cache), or
 * when the text no longer fits into the window, it needs a forward of the whole window. The tokens
 * are the same with and without a cache, and on any number of ranks.
 */
#pragma once

#include "model/model.h"

/* How a token is drawn from its logits. */
typedef struct moert_sampling {
    double temperature; /* logits are divided by it; 0: the token with the largest logit */
    size_t top_k;       /* only the tokens with the largest logits can be drawn; 0 = all */
    /* only the fewest tokens that together have at least this probability can be drawn, after
     * top_k; 1 = all */
    double top_p;
    uint64_t seed;
} moert_sampling;

/* Draws one of `count` tokens; `uniform` is a random number in [0, 1). Of tokens with equal logits,
 * the one with the smaller number comes first. order[count] is scratch. */
int32_t moert_sample_token(const moert_sampling *how, const float *logits, size_t count,
                           double uniform, int32_t *order);

typedef struct moert_generation_options {
    moert_sampling sampling;
    size_t window; /* the model sees at most so many of the last tokens */
    bool no_cache; /* compute the whole window for each token */
} moert_generation_options;

/* A text in progress. */
typedef struct moert_generation moert_generation;
/* The model must outlive *generation. Errors: ERROR_MEMORY. Not collective. */
moert_status moert_generation_create(moert_model *model, const moert_generation_options *options,
                                     moert_generation **generation);
void moert_generation_destroy(moert_generation *generation); /* NULL is legal */

/* Begins a new text with these tokens, the same on all ranks. Tokens at its start that are also at
 * the start of the previous text stay in the cache. ERROR_USAGE: no token, or one outside of the
 * vocabulary. Not collective. */
moert_status moert_generation_begin(moert_generation *generation, const int32_t *tokens,
                                    size_t count);
/* Draws the next token, and appends it to the text. Collective. */
moert_status moert_generation_next(moert_generation *generation, int32_t *token);

typedef struct moert_likelihood {
    double log_probability; /* the sum over the tokens, each given all tokens before it */
    bool is_greedy;         /* each token is the most likely one */
} moert_likelihood;
/* Begins a new text with tokens[count], and scores its tokens from `first` on, 1 <= first < count.
 * ERROR_USAGE: as for moert_generation_begin; another `first`; more tokens than the window.
 * Collective. */
moert_status moert_generation_score(moert_generation *generation, const int32_t *tokens,
                                    size_t count, size_t first, moert_likelihood *score);
