/*
 * The division of a source into training, held-out and test data.
 *
 * The tokens are cut into up to 16 equal stretches; into fewer if the parts of the stretches would
 * be short. Each stretch consists of a training, a held-out and a test part, in this order. So
 * training, held-out and test data are each drawn from everywhere in the source.
 */
#pragma once

#include <stddef.h>

#include "base/error.h"
#include "data/epochs.h"

typedef enum moert_use { MOERT_TRAINING, MOERT_HELD_OUT, MOERT_TEST, MOERT_USES } moert_use;

/* The fractions of training, held-out and test tokens. */
typedef struct moert_split {
    double part[MOERT_USES];
} moert_split;

/* *split = a fraction `held_out` of held-out data; the rest is for training. Errors: ERROR_USAGE
 * (held_out is below 0, or 1 or more). */
moert_status moert_split_hold_out(double held_out, moert_split *split);
enum { MOERT_SPLIT_TEXT_BYTES = 64 };
/* Writes the fractions of training, held-out and test tokens, with commas between them. */
void moert_split_text(const moert_split *split, char text[MOERT_SPLIT_TEXT_BYTES]);
/* Reads the weights of training, held-out and test data, such as 969,30,1. Errors: ERROR_USAGE. */
moert_status moert_split_read(const char *text, moert_split *split);

/* The stretches. Up to count - 1 tokens may remain after the last stretch; they are also for
 * training. */
typedef struct moert_stretches {
    size_t count, tokens;    /* number of stretches; tokens of each */
    size_t part[MOERT_USES]; /* tokens of the parts of each stretch */
} moert_stretches;

/* Divides `tokens` tokens into stretches, for sequences of `length` tokens. The held-out and the
 * test part of a stretch have room for at least one sequence, unless their fraction is 0. Errors:
 * ERROR_MISMATCH (too few tokens), ERROR_USAGE (a length of 0). */
moert_status moert_split_divide(const moert_split *split, size_t tokens, size_t length,
                                moert_stretches *all);

/* The range of a stretch's training part; stretch number `count` stands for the tokens after the
 * last stretch. */
moert_range moert_split_training(const moert_stretches *all, size_t stretch, size_t tokens);

/* moert_split_starts returns the number of positions at which a sequence of `length` may start in
 * the data for a use. moert_split_start returns position `number` of these positions. The split
 * must have data for this use. */
size_t moert_split_starts(const moert_stretches *all, moert_use use, size_t length);
size_t moert_split_start(const moert_stretches *all, moert_use use, size_t length, size_t number);
