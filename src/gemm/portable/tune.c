/*
 * Looks up the choices of a portable GEMM. With MOERT_TUNE=auto, the first GEMM of a shape without
 * a measured row tries candidates, which all give the same bits, for about BUDGET_NS. A GEMM that
 * accumulates runs on a spare result meanwhile. Each rank measures for itself and waits for no
 * other.
 */
#include <stdio.h>
#include <time.h>

#include "base/config.h"
#include "base/log.h"
#include "gemm/backend.h"
#include "gemm/portable/gemm.h"
#include "gemm/tuning/search.h"

enum { BUDGET_NS = 300000000, AXES = MOERT_TUNE_AXES - MOERT_TUNE_PANELS };

typedef struct attempt {
    moert_gemm gemm;
    size_t start;
    moert_portable_run *run;
} attempt;

static moert_status run_attempt(void *what) {
    const attempt *a = what;
    return a->run(&a->gemm, a->start);
}

/* Replaces the result by a new buffer of zeros if the GEMM accumulates. */
static moert_status spare_result(attempt *a, moert_tuned operation, moert_buffer **spare) {
    moert_buffer **result =
        operation == MOERT_TUNED_WGRAD ? &a->gemm.weight.buffer : &a->gemm.x.buffer;
    if (a->gemm.epilogue.addend == MOERT_ADDEND_NONE)
        return MOERT_OK;
    const size_t bytes = moert_buffer_bytes(*result);
    MOERT_TRY(moert_buffer_create(moert_buffer_device(*result), bytes, spare));
    *result = *spare;
    return moert_buffer_clear(*spare, 0, bytes);
}

static void remember(const moert_device *device, const moert_tuning_key *key,
                     const moert_tune_result *found) {
    const moert_device_info *info = moert_device_describe(device);
    const bool faster = found->chosen != 0;
    const time_t now = time(NULL);
    char day[16] = "", comment[180];
    struct tm parts;
    if (gmtime_r(&now, &parts) != NULL)
        strftime(day, sizeof day, "%Y-%m-%d", &parts);
    snprintf(comment, sizeof comment, "%s, driver %.40s, moert %s, on first use: %.3f -> %.3f ms",
             day, info->driver, MOERT_VERSION,
             1e-6 * (faster ? found->first_ns : found->candidates[0].ns),
             1e-6 * (faster ? found->chosen_ns : found->candidates[0].ns));
    moert_choices choices = found->candidates[found->chosen].choices;
    choices.lines = choices.width = 0; /* the search above starts after the axis TILE */
    if (moert_tuning_remember(device, MOERT_TUNING_DEVICE, key, &choices, comment) != MOERT_OK)
        MOERT_WARN("%s", moert_last_error());
}

/* Measures candidates and sets *choices to the fastest. Failures are only logged, since the GEMM
 * that follows reports its own. */
static void measure(const attempt *wanted, const moert_tuning_key *key, moert_choices *choices) {
    moert_device *device = moert_buffer_device(wanted->gemm.x.buffer);
    attempt a = *wanted;
    const moert_trial trial = {device, &a, NULL, run_attempt, moert_prefetches(a.gemm.prepacked)};
    moert_tune_result found;
    moert_buffer *spare = NULL;
    moert_status status = spare_result(&a, key->operation, &spare);
    if (status == MOERT_OK)
        status = moert_tune_search(&trial, choices, MOERT_TUNE_PREFETCH,
                                   BUDGET_NS / (AXES + trial.prefetches + 1), &found);
    moert_buffer_destroy(spare);
    if (status != MOERT_OK) {
        MOERT_DEBUG("%s of [%zu,%zu] is not tuned: %s", moert_tuned_name(key->operation), key->n,
                    key->k, moert_last_error());
        return;
    }
    *choices = found.candidates[found.chosen].choices;
    remember(device, key, &found);
}

moert_choices moert_portable_choices(const moert_gemm *gemm, moert_tuned operation, size_t start,
                                     moert_portable_run *run) {
    /* a wgrad without rows has no x, only its result */
    const moert_device *device =
        moert_buffer_device(operation == MOERT_TUNED_WGRAD ? gemm->weight.buffer : gemm->x.buffer);
    const moert_row_groups part = moert_groups_filled(gemm->groups);
    const size_t groups = gemm->groups.shared && operation != MOERT_TUNED_WGRAD
                              ? 1
                              : moert_max(part.end - part.first, 1);
    const moert_tuning_key key = {operation, moert_gemm_type(gemm), gemm->n, gemm->k,
                                  moert_ceil_div(part.end_row - part.first_row, groups)};
    bool measured;
    moert_choices choices = moert_tuning_find(device, &key, &measured);
    if (gemm->prepacked != NULL)
        choices.width = moert_prepacked_width(gemm->prepacked, choices.width);
    if (moert_config_get()->tune == MOERT_TUNE_AUTO && !measured && key.rows > 0 &&
        (gemm->prepacked != NULL || gemm->weight.buffer != NULL) &&
        !moert_recording_is_open(device))
        measure(&(attempt){*gemm, start, run}, &key, &choices);
    return moert_with_tile(choices, moert_gemm_dot(gemm, device));
}
