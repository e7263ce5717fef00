/* Divides a source into training, held-out and test data. */
#include "data/split.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"

moert_status moert_split_hold_out(double held_out, moert_split *split) {
    if (!(held_out >= 0.0 && held_out < 1.0))
        return MOERT_FAIL(ERROR_USAGE, "held-out fraction %g: expected 0 to below 1", held_out);
    *split = (moert_split){{1.0 - held_out, held_out, 0.0}};
    return MOERT_OK;
}

moert_status moert_split_read(const char *text, moert_split *split) {
    double weight[MOERT_USES], sum = 0.0;
    const char *at = text;
    bool legal = true;
    for (size_t i = 0; i < MOERT_USES && legal; i++) {
        char *rest;
        weight[i] = strtod(at, &rest);
        legal = at[0] >= '0' && at[0] <= '9' && weight[i] <= 1e9 &&
                *rest == (i + 1 < MOERT_USES ? ',' : '\0');
        sum += weight[i];
        at = rest + 1;
    }
    if (!legal || weight[MOERT_TRAINING] == 0.0)
        return MOERT_FAIL(ERROR_USAGE,
                          "split '%s': expected the weights of training, held-out and test data, "
                          "such as 969,30,1, the first above 0",
                          text);
    for (size_t i = 0; i < MOERT_USES; i++)
        split->part[i] = weight[i] / sum;
    return MOERT_OK;
}

void moert_split_text(const moert_split *split, char text[MOERT_SPLIT_TEXT_BYTES]) {
    snprintf(text, MOERT_SPLIT_TEXT_BYTES, "%.10g,%.10g,%.10g", split->part[MOERT_TRAINING],
             split->part[MOERT_HELD_OUT], split->part[MOERT_TEST]);
}

moert_status moert_split_divide(const moert_split *split, size_t tokens, size_t length,
                                moert_stretches *all) {
    enum { MOST = 16 };
    double smallest = 1.0;
    if (length == 0)
        return MOERT_FAIL(ERROR_USAGE, "a sequence needs at least one token");
    for (size_t i = 0; i < MOERT_USES; i++)
        if (split->part[i] > 0.0)
            smallest = fmin(smallest, split->part[i]);
    const double fitting = smallest * (double)tokens / (2.0 * ((double)length + 1.0));
    const size_t count = smallest < 1.0 ? moert_max((size_t)fmin(fitting, MOST), 1) : 1;
    size_t kept = 0;
    *all = (moert_stretches){.count = count, .tokens = tokens / count};
    for (size_t i = MOERT_HELD_OUT; i < MOERT_USES; i++) {
        const size_t part = (size_t)floor((double)all->tokens * split->part[i]);
        all->part[i] = split->part[i] > 0.0 ? moert_max(part, length + 1) : 0;
        kept += all->part[i];
    }
    if (all->tokens < length + 1 || all->tokens - (length + 1) < kept)
        return MOERT_FAIL(ERROR_MISMATCH,
                          "%zu tokens of data are too few for sequences of %zu tokens (%zu tokens "
                          "are held out, and a training sequence needs %zu)",
                          tokens, length, kept, length + 1);
    all->part[MOERT_TRAINING] = all->tokens - kept;
    return MOERT_OK;
}

moert_range moert_split_training(const moert_stretches *all, size_t stretch, size_t tokens) {
    const size_t begin = stretch * all->tokens;
    return (moert_range){begin, stretch < all->count ? begin + all->part[MOERT_TRAINING] : tokens};
}

size_t moert_split_starts(const moert_stretches *all, moert_use use, size_t length) {
    return all->count * (all->part[use] - length);
}

size_t moert_split_start(const moert_stretches *all, moert_use use, size_t length, size_t number) {
    const size_t starts = all->part[use] - length;
    size_t at = number / starts * all->tokens + number % starts;
    for (size_t before = 0; before < use; before++)
        at += all->part[before];
    return at;
}
