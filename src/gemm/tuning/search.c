/* Searches for faster choices by timing candidates alternately. */
#include "gemm/tuning/search.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"

enum { SHORTEST_SAMPLE_NS = 200000, MOST_REPEATS = 64, MOST_VALUES = 8 };
/* A candidate must take less than this fraction of the best time; a smaller gain may be noise. */
#define GAIN 0.98

static const moert_choices axes[MOERT_TUNE_AXES][MOST_VALUES] = {
#define AXIS_ROW(name, ...) [MOERT_TUNE_##name] = {__VA_ARGS__},
    MOERT_TUNE_AXIS_TABLE(AXIS_ROW)
#undef AXIS_ROW
};

/* Returns `base`, with each choice that `value` sets replaced by that of `value`. */
static moert_choices replace(moert_choices base, const moert_choices *value) {
#define CHOICE_REPLACE(name, low, high, multiple, standard)                                        \
    base.name = value->name != 0 ? value->name : base.name;
    MOERT_CHOICE_TABLE(CHOICE_REPLACE)
#undef CHOICE_REPLACE
    return base;
}

static moert_status time_runs(const moert_trial *trial, const moert_choices *choices, size_t repeat,
                              double *ns) {
    const uint64_t start = moert_clock_ns();
    for (size_t i = 0; i < repeat; i++)
        MOERT_TRY(trial->run(trial->what, choices));
    MOERT_TRY(moert_device_finish(trial->device));
    *ns = (double)(moert_clock_ns() - start) / (double)repeat;
    return MOERT_OK;
}

/* Takes a sample of a candidate; before the first sample, runs the candidate once untimed. */
static moert_status take_sample(const moert_trial *trial, moert_candidate *c, size_t *repeat,
                                double *spent_ns) {
    const bool first = c->samples == 0;
    double ns = 0.0;
    if (trial->prepare != NULL)
        MOERT_TRY(trial->prepare(trial->what, &c->choices));
    if (first)
        MOERT_TRY(time_runs(trial, &c->choices, 1, &ns));
    if (*repeat == 0) {
        MOERT_TRY(time_runs(trial, &c->choices, 1, &ns));
        *repeat = (size_t)(SHORTEST_SAMPLE_NS / (ns + 1.0)) + 1;
        *repeat = moert_min(*repeat, MOST_REPEATS);
    }
    MOERT_TRY(time_runs(trial, &c->choices, *repeat, &ns));
    c->sample[c->samples++] = ns;
    *spent_ns += ns * (double)(*repeat + first);
    return MOERT_OK;
}

static int compare_times(const void *a, const void *b) {
    const double first = *(const double *)a, second = *(const double *)b;
    return first < second ? -1 : first > second ? 1 : 0;
}

static void find_median(moert_candidate *c) {
    if (c->samples == 0)
        return;
    qsort(c->sample, c->samples, sizeof *c->sample, compare_times);
    c->ns = c->sample[c->samples / 2];
}

/* Samples candidates[0..count) alternately until the budget is spent. */
static moert_status compare(const moert_trial *trial, moert_candidate *candidates, size_t count,
                            uint64_t budget_ns) {
    double spent_ns = 0.0;
    size_t repeat = 0;
    for (size_t round = 0; round < MOERT_TUNE_SAMPLES && spent_ns < (double)budget_ns; round++)
        for (size_t i = 0; i < count && spent_ns < (double)budget_ns; i++)
            MOERT_TRY(take_sample(trial, &candidates[i], &repeat, &spent_ns));
    for (size_t i = 0; i < count; i++)
        find_median(&candidates[i]);
    return MOERT_OK;
}

/* Compares the best choices so far with the values of an axis. */
static moert_status search_axis(const moert_trial *trial, moert_tune_axis axis, uint64_t budget_ns,
                                moert_tune_result *result) {
    moert_candidate list[MOST_VALUES + 1] = {
        {.choices = result->candidates[result->chosen].choices}};
    size_t count = 1, best = 0;
    for (size_t v = 0; v < MOST_VALUES; v++) {
        const moert_choices next = replace(list[0].choices, &axes[axis][v]);
        if (memcmp(&next, &list[0].choices, sizeof next) != 0)
            list[count++] = (moert_candidate){.choices = next};
    }
    MOERT_TRY(compare(trial, list, count, budget_ns));
    for (size_t i = 1; i < count; i++) {
        if (list[i].ns > 0.0 && list[i].ns < GAIN * list[0].ns &&
            (best == 0 || list[i].ns < list[best].ns))
            best = i;
    }
    if (result->count == 0)
        result->candidates[result->count++] = list[0];
    for (size_t i = 1; i < count && result->count < MOERT_TUNE_CANDIDATES; i++) {
        if (i == best)
            result->chosen = result->count;
        result->candidates[result->count++] = list[i];
    }
    return MOERT_OK;
}

/* Compares the chosen candidate with the first candidate; falls back to the first unless the chosen
 * candidate is faster. */
static moert_status confirm(const moert_trial *trial, uint64_t budget_ns,
                            moert_tune_result *result) {
    moert_candidate pair[] = {{.choices = result->candidates[0].choices},
                              {.choices = result->candidates[result->chosen].choices}};
    if (result->chosen == 0)
        return MOERT_OK;
    MOERT_TRY(compare(trial, pair, 2, budget_ns));
    if (pair[1].ns == 0.0 || pair[1].ns >= GAIN * pair[0].ns) {
        result->chosen = 0;
        return MOERT_OK;
    }
    result->first_ns = pair[0].ns;
    result->chosen_ns = pair[1].ns;
    return MOERT_OK;
}

moert_status moert_tune_search(const moert_trial *trial, const moert_choices *first,
                               moert_tune_axis first_axis, uint64_t budget_ns,
                               moert_tune_result *result) {
    *result = (moert_tune_result){.candidates = {{.choices = *first}}};
    for (moert_tune_axis axis = first_axis; axis < MOERT_TUNE_AXES; axis++)
        if (axis != MOERT_TUNE_PREFETCH || trial->prefetches)
            MOERT_TRY(search_axis(trial, axis, budget_ns, result));
    return confirm(trial, budget_ns, result);
}
