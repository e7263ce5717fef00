/* Searches for the fastest choices (gemm/tuning/tuning.h) by measuring. */
#pragma once

#include "gemm/tuning/tuning.h"

/* A GEMM that can run any number of times, each time with other choices. */
typedef struct moert_trial {
    moert_device *device;
    void *what; /* argument of the callbacks */
    /* Called before each sample, untimed; may be NULL. */
    moert_status (*prepare)(void *what, const moert_choices *choices);
    /* Enqueues the GEMM once. */
    moert_status (*run)(void *what, const moert_choices *choices);
    bool prefetches; /* false: the search skips the axis PREFETCH */
} moert_trial;

/* X(AXIS, candidate values...): a value may set several choices */
#define MOERT_TUNE_AXIS_TABLE(X)                                                                   \
    X(TILE, {.lines = 8, .width = 2}, {.lines = 8, .width = 3}, {.lines = 12, .width = 2},         \
      {.lines = 6, .width = 4}, {.lines = 6, .width = 2}, {.lines = 4, .width = 4},                \
      {.lines = 4, .width = 2}, {.lines = 6, .width = 1})                                          \
    X(PREFETCH, {.prefetch = 32}, {.prefetch = 64}, {.prefetch = 4096})                            \
    X(PANELS, {.panels = 1}, {.panels = 2}, {.panels = 4}, {.panels = 8}, {.panels = 16})          \
    X(DEPTH, {.depth = 128}, {.depth = 256}, {.depth = 512}, {.depth = 1024}, {.depth = 2048})     \
    X(SPLIT, {.split = 4096}, {.split = 64}, {.split = 128}, {.split = 256}, {.split = 512})

typedef enum moert_tune_axis {
#define MOERT_TUNE_AXIS_ENUM(name, ...) MOERT_TUNE_##name,
    MOERT_TUNE_AXIS_TABLE(MOERT_TUNE_AXIS_ENUM)
#undef MOERT_TUNE_AXIS_ENUM
        MOERT_TUNE_AXES
} moert_tune_axis;

enum { MOERT_TUNE_CANDIDATES = 32, MOERT_TUNE_SAMPLES = 15 };

typedef struct moert_candidate {
    moert_choices choices;
    double ns; /* median of the samples; 0 if the budget allowed no sample */
    size_t samples;
    double sample[MOERT_TUNE_SAMPLES];
} moert_candidate;

typedef struct moert_tune_result {
    moert_candidate candidates[MOERT_TUNE_CANDIDATES];
    size_t count, chosen;       /* candidates[0] has the initial choices */
    double first_ns, chosen_ns; /* times in the final comparison of candidates[0] and
                                   candidates[chosen]; 0 if candidates[0] is chosen */
} moert_tune_result;

/*
 * Searches one axis after another, from `first_axis` on. The candidates of an axis run in turn
 * until the axis has used `budget_ns`, not counting compilations. Each candidate runs once before
 * the timed runs. A candidate replaces the best candidate so far only if its median is more than 2
 * % lower. Blocks. Returns the errors of the trial.
 */
moert_status moert_tune_search(const moert_trial *trial, const moert_choices *first,
                               moert_tune_axis first_axis, uint64_t budget_ns,
                               moert_tune_result *result);
