/* Measures what rows of tuning choose among (gemm/tuning/tuning.h). */
#pragma once

#include "gemm/tuning/tuning.h"

/* A product that can be run any number of times with the choices that are forced just then. */
typedef struct moert_trial {
    moert_device *device;
    void *what;
    moert_status (*prepare)(void *what); /* not timed; may be NULL */
    moert_status (*run)(void *what);     /* enqueues it once */
    bool prefetches; /* it can choose when to prefetch: else that axis is left out */
} moert_trial;

/* X(AXIS, the choices that change together) */
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
    double ns; /* median of the samples; 0 when there was no time for one */
    size_t samples;
    double sample[MOERT_TUNE_SAMPLES];
} moert_candidate;

typedef struct moert_tune_result {
    moert_candidate candidates[MOERT_TUNE_CANDIDATES];
    size_t count, chosen;       /* candidates[0] = what the search began with */
    double first_ns, chosen_ns; /* beside each other, at the end; 0 when 0 is chosen */
} moert_tune_result;

/*
 * Looks for faster choices along one axis after another, from `first_axis` on. Candidates of an
 * axis take turns until `budget_ns` have been spent on it, compilations not counted; each is run
 * once before it is timed. Another is chosen only if its median is 2 % below. Blocks. The errors
 * are those of the trial.
 */
moert_status moert_tune_search(const moert_trial *trial, const moert_choices *first,
                               moert_tune_axis first_axis, uint64_t budget_ns,
                               moert_tune_result *result);
