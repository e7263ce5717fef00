/* Saves checkpoints and models: at once, or in stages by a thread while training continues. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/phase.h"
#include "base/progress.h"
#include "base/text.h"
#include "io/durable.h"
#include "train/saver.h"
#include "train/values.h"
#include "train/checksums.h"

/* Ends a stage of a save. `status` is the result of this rank's work in the stage. Collective. */
static moert_status end_stage(moert_saver *s, moert_status status) {
    MOERT_TRY(moert_comm_agree(s->world, status));
    if (moert_save_stages[s->stage].exchanges)
        MOERT_TRY(moert_checksums_exchange(s->world, s->manifest));
    s->stage++;
    return MOERT_OK;
}

/* Ends a save. If the save has failed, removes its files. */
static moert_status end_save(moert_saver *s, moert_status status) {
    if (status != MOERT_OK && s->temporary != NULL && moert_saver_is_first(s)) {
        char *message = moert_error_keep();
        status = moert_error_first(message, status, moert_remove_tree(s->temporary));
    }
    moert_manifest_free(s->manifest);
    free(s->temporary);
    s->manifest = NULL;
    s->temporary = NULL;
    s->busy = false;
    s->ended_ns = moert_clock_ns();
    return status;
}

static void work(moert_saver *s) {
    s->status = moert_save_stages[s->stage].work(s);
    s->message = s->status != MOERT_OK ? moert_error_keep() : NULL;
    s->ended = true;
}

static void *work_beside(void *argument) {
    moert_phase_beside();
    work(argument);
    return NULL;
}

/* Starts the work of a stage. If training continues meanwhile and the system allows a thread, the
 * work runs in a thread. */
static void begin_stage(moert_saver *s) {
    s->ended = false;
    s->has_thread = s->beside && pthread_create(&s->thread, NULL, work_beside, s) == 0;
    if (!s->has_thread)
        work(s);
}

/* Waits until the stage's work has ended, and returns its result. Tells the watchdog about
 * progress. */
static moert_status join(moert_saver *s) {
    const uint64_t from = moert_clock_ns();
    for (uint64_t seen = 0; !s->ended; moert_clock_pause(from)) {
        const uint64_t ticks = moert_phase_ticks_beside();
        if (ticks != seen)
            moert_phase_tick();
        seen = ticks;
    }
    if (s->has_thread)
        pthread_join(s->thread, NULL);
    char *message = s->message;
    s->message = NULL;
    return moert_error_first(message, s->status, MOERT_OK);
}

/* Ends a stage. Then begins the next stage or, after the last one, ends the save. Collective. */
static moert_status go_on(moert_saver *s) {
    const moert_status status = end_stage(s, join(s));
    if (status != MOERT_OK || s->stage == MOERT_SAVE_STAGES)
        return end_save(s, status);
    begin_stage(s);
    return MOERT_OK;
}

/* Begins a save. `status` is the result of preparing the save, and is the same on all ranks. */
static moert_status begin_save(moert_saver *s, moert_status status, bool beside) {
    if (status != MOERT_OK)
        return end_save(s, status);
    s->beside = beside;
    s->busy = true;
    begin_stage(s);
    return MOERT_OK;
}

/* Copies this rank's values to host memory. */
static moert_status take_copy(moert_saver *s) {
    const size_t count = moert_model_tensor_count(s->model);
    const moert_model_tensor *tensor = moert_model_tensors(s->model);
    float *to = s->copy;
    for (size_t e = 0; e < moert_checkpoint_kinds(s->model) * count; e++) {
        const moert_model_range shard = moert_model_shard(&tensor[e % count]);
        if (shard.count == 0)
            continue;
        const moert_elements values = moert_values_of(s->options.optimizer, &tensor[e % count],
                                                      (moert_value_kind)(e / count));
        MOERT_TRY(moert_elements_read(&values, 0, shard.count, to));
        moert_phase_tick();
        to += shard.count;
    }
    return MOERT_OK;
}

/* ---- checkpoints ---- */

size_t moert_saver_floats(const moert_model *model) {
    size_t floats = 0, first;
    for (size_t i = 0; i < moert_model_block_count(model); i++)
        floats += moert_block_shard(moert_model_block(model, i), &first);
    return moert_checkpoint_kinds(model) * floats;
}

moert_status moert_saver_create(const moert_saver_options *options, moert_saver **saver) {
    moert_saver *s;
    MOERT_TRY(MOERT_NEW(&s));
    s->options = *options;
    s->model = options->optimizer->model;
    s->world = moert_model_mesh(s->model)->world;
    moert_status status = moert_value_specs(s->model, MOERT_VALUES_WEIGHTS,
                                            moert_checkpoint_kinds(s->model), &s->specs);
    if (status == MOERT_OK)
        status = moert_saver_make_files(s, 0);
    const size_t floats = options->beside ? moert_saver_floats(s->model) : 0;
    if (status == MOERT_OK && options->beside)
        status = MOERT_NEW_ARRAY(&s->copy, floats);
    if (status == MOERT_OK && options->beside)
        /* touches the pages now, so that no training step is delayed by page faults */
        memset(s->copy, 0, floats * sizeof *s->copy);
    if (status == MOERT_OK)
        *saver = s;
    else
        moert_saver_destroy(s);
    return status;
}

void moert_saver_destroy(moert_saver *s) {
    if (s == NULL)
        return;
    if (s->busy) {
        s->dropped = true;
        join(s);
        end_save(s, MOERT_ERROR_INTERNAL);
    }
    moert_value_specs_free(s->model, moert_checkpoint_kinds(s->model), s->specs);
    MOERT_FREE(s->path, s->copy, s->files, s);
}

/* Prepares a save of the run's state `state`. Collective. */
static moert_status prepare(moert_saver *s, const moert_run_state *state) {
    moert_phase_set(MOERT_PHASE_SAVE);
    free(s->path);
    s->path = NULL;
    s->state = *state;
    s->stage = 0;
    s->dropped = false;
    s->begun_ns = moert_clock_ns();
    moert_status status = moert_checkpoint_path(s->options.directory, state->step, &s->path);
    if (status == MOERT_OK)
        status = moert_text_path(&s->temporary, "%s.tmp", s->path);
    return moert_comm_agree(s->world, status);
}

moert_status moert_saver_write(moert_saver *s, const moert_run_state *state) {
    MOERT_TRY(begin_save(s, prepare(s, state), false));
    return moert_saver_wait(s);
}

moert_status moert_saver_begin(moert_saver *s, const moert_run_state *state) {
    moert_status status = prepare(s, state);
    if (status == MOERT_OK)
        status = moert_comm_agree(s->world, take_copy(s));
    return begin_save(s, status, true);
}

bool moert_saver_is_busy(const moert_saver *s) {
    return s->busy;
}

moert_status moert_saver_poll(moert_saver *s) {
    enum { FAILED, WORKS, DONE };
    uint64_t least = !s->ended ? WORKS : s->status != MOERT_OK ? FAILED : DONE;
    if (!s->busy)
        return MOERT_OK;
    MOERT_TRY(moert_comm_smallest(s->world, &least));
    s->dropped = least == FAILED;
    return least == WORKS ? MOERT_OK : go_on(s);
}

moert_status moert_saver_wait(moert_saver *s) {
    moert_status status = MOERT_OK;
    moert_phase_set(MOERT_PHASE_SAVE);
    moert_progress_begin("saving", 0);
    while (s->busy)
        status = go_on(s);
    moert_progress_end();
    return status;
}

moert_saved moert_saver_last(const moert_saver *s) {
    return (moert_saved){s->state.step, s->path, 1e-9 * (double)(s->ended_ns - s->begun_ns)};
}

/* ---- models ---- */

moert_status moert_model_save(moert_model *model, const moert_export *how, const char *path) {
    char *text = NULL;
    moert_saver s = {.options = {.config_text = how->config_text},
                     .companions = how->from,
                     .model = model,
                     .world = moert_model_mesh(model)->world};
    moert_phase_set(MOERT_PHASE_SAVE);
    moert_status status = moert_value_specs(model, MOERT_VALUES_WEIGHTS, 1, &s.specs);
    for (size_t i = 0; status == MOERT_OK && i < moert_model_file_tensor_count(model); i++)
        s.specs[i].type = how->type;
    if (status == MOERT_OK && how->type == MOERT_FILE_BF16) {
        status = moert_model_config_retype(how->config_text, "bfloat16", &text);
        s.options.config_text = text;
    }
    if (status == MOERT_OK)
        status = moert_saver_make_files(&s, how->file_bytes);
    if (status == MOERT_OK)
        status = moert_text_path(&s.path, "%s", path);
    if (status == MOERT_OK)
        status = moert_text_path(&s.temporary, "%s.tmp", path);
    status = begin_save(&s, moert_comm_agree(s.world, status), false);
    if (status == MOERT_OK)
        status = moert_saver_wait(&s);
    moert_value_specs_free(model, 1, s.specs);
    MOERT_FREE(text, s.path, s.files);
    return status;
}
