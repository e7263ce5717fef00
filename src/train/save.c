/* Writes checkpoints and models in stages; a thread does the work of a save beside training. */
#include "train/save.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/phase.h"
#include "base/text.h"
#include "io/durable.h"
#include "io/json.h"
#include "train/shared_file.h"
#include "train/values.h"
#include "train/verify.h"

enum { CHECKPOINT_KINDS = 3 };
static const char index_name[] = "model.safetensors.index.json";

/* A safetensors file: specs [first, first + count). */
typedef struct saved_file {
    char name[64];
    size_t first, count;
} saved_file;

struct moert_saver {
    moert_saver_options options;
    moert_model *model;
    moert_comm *world;
    saved_file *files; /* in the order of the specs; those of the weights have an index if split */
    size_t file_count;
    moert_tensor_spec *specs; /* [kinds, T] */
    float *copy;              /* this rank's values, in the order of the specs; NULL: none */

    /* the last save */
    moert_run_state state; /* of a checkpoint */
    char *path, *temporary;
    moert_manifest *manifest;
    size_t stage, next_value; /* next_value: the place in `copy` from which to write */
    uint64_t begun_ns, ended_ns;
    bool busy; /* in progress, beside training */

    /* its thread, which works on one stage */
    pthread_t thread;
    bool has_thread;
    moert_status status; /* the thread's result, once it has ended */
    char *message;
    atomic_bool ended, dropped; /* dropped: the thread shall end soon, since the save has failed */
    uint64_t written_bytes, writing_ns;
};

static bool is_first(const moert_saver *s) {
    return moert_comm_rank(s->world) == 0;
}

static bool is_checkpoint(const moert_saver *s) {
    return s->options.optimizer != NULL;
}

/* ---- the files ---- */

/* Counts the files of the weights: one, or as many as the model's tensors fill in their order with
 * at most file_bytes each; a larger tensor has a file of its own. Sets their specs, if `files` is
 * not NULL. */
static size_t split_weights(const moert_model *model, size_t file_bytes, saved_file *files) {
    const moert_model_tensor *tensor = moert_model_tensors(model);
    const size_t tensors = moert_model_tensor_count(model);
    size_t count = 0, room = 0;
    for (size_t i = 0; i < tensors; i++) {
        const size_t bytes = tensor[i].elements * sizeof(float);
        if (count == 0 || (file_bytes > 0 && bytes > room)) {
            count++;
            room = file_bytes;
            if (files != NULL)
                files[count - 1] = (saved_file){.first = i};
        }
        room -= moert_min(bytes, room);
        if (files != NULL)
            files[count - 1].count++;
    }
    return count;
}

/* Names the files as transformers does, and adds that of the moments for a checkpoint. */
static moert_status make_files(moert_saver *s, size_t file_bytes) {
    const size_t tensors = moert_model_tensor_count(s->model);
    const size_t weights = split_weights(s->model, file_bytes, NULL);
    s->file_count = weights + is_checkpoint(s);
    MOERT_TRY(MOERT_NEW_ARRAY(&s->files, s->file_count));
    split_weights(s->model, file_bytes, s->files);
    for (size_t i = 0; i < weights; i++)
        if (weights == 1)
            snprintf(s->files[i].name, sizeof s->files[i].name, "model.safetensors");
        else
            snprintf(s->files[i].name, sizeof s->files[i].name, "model-%05zu-of-%05zu.safetensors",
                     i + 1, weights);
    if (is_checkpoint(s))
        s->files[weights] = (saved_file){"optimizer.safetensors", tensors, 2 * tensors};
    return MOERT_OK;
}

/* ---- the stages ---- */

/* Whether an index says which file has which weight. */
static bool has_index(const moert_saver *s) {
    return s->files[0].count < moert_model_tensor_count(s->model);
}

static moert_status open_writer(const moert_saver *s, const saved_file *file, bool create,
                                moert_tensor_writer **writer) {
    char *path;
    MOERT_TRY(moert_text_path(&path, "%s/%s", s->temporary, file->name));
    const moert_status status = moert_writer_open(path, s->specs + file->first, file->count,
                                                  moert_value_metadata, create, writer);
    free(path);
    return status;
}

static moert_status create_file(const moert_saver *s, const saved_file *file) {
    moert_tensor_writer *writer;
    MOERT_TRY(open_writer(s, file, true, &writer));
    return moert_writer_close(writer);
}

static moert_status write_text(const moert_saver *s, const char *name, const char *text) {
    char *path;
    MOERT_TRY(moert_text_path(&path, "%s/%s", s->temporary, name));
    const moert_status status = moert_durable_write(path, text);
    free(path);
    return status;
}

/* Writes the index: {"metadata": {"total_size": bytes}, "weight_map": {tensor: file, ...}}. */
static moert_status write_index(const moert_saver *s) {
    const moert_model_tensor *tensor = moert_model_tensors(s->model);
    json_t *map = json_object();
    size_t bytes = 0;
    bool whole = true;
    for (size_t f = 0; f < s->file_count; f++)
        for (size_t i = s->files[f].first; i < s->files[f].first + s->files[f].count; i++) {
            json_t *name = json_string(s->files[f].name);
            whole &= json_object_set_new(map, s->specs[i].name, name) == 0;
            bytes += tensor[i].elements * sizeof(float);
        }
    json_t *root =
        json_pack("{s{sI} so}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map);
    char *text = NULL;
    moert_status status = whole ? moert_json_text(index_name, root, JSON_INDENT(2), &text)
                                : MOERT_FAIL(ERROR_MEMORY, "no room for %s", index_name);
    json_decref(root);
    MOERT_TRY(status);
    status = write_text(s, index_name, text);
    free(text);
    return status;
}

/* Rank 0 writes the small files, and the headers of the others, to an empty directory. */
static moert_status create_files(moert_saver *s) {
    if (!is_first(s))
        return MOERT_OK;
    MOERT_TRY(moert_remove_tree(s->temporary));
    MOERT_TRY(moert_make_directories(s->temporary));
    MOERT_TRY(write_text(s, "config.json", s->options.config_text));
    if (has_index(s))
        MOERT_TRY(write_index(s));
    if (is_checkpoint(s))
        MOERT_TRY(moert_run_state_write(s->temporary, &s->state));
    for (size_t i = 0; i < s->file_count; i++)
        MOERT_TRY(create_file(s, &s->files[i]));
    return MOERT_OK;
}

/* Delays the thread until the bytes that it has written keep to the rate. */
static void keep_rate(moert_saver *s, size_t bytes) {
    enum { LONGEST_NS = 50000000 };
    const double ns_per_byte =
        1e9 * (double)moert_comm_size(s->world) / s->options.bytes_per_s; /* of this rank */
    s->written_bytes += bytes;
    while (s->options.bytes_per_s > 0.0 && !s->dropped) {
        const double left =
            ns_per_byte * (double)s->written_bytes - (double)(moert_clock_ns() - s->writing_ns);
        if (left <= 0.0)
            return;
        const long ns = left < LONGEST_NS ? (long)left : LONGEST_NS;
        nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
        moert_phase_tick();
    }
}

/* Writes the values of a tensor from the copy. */
static moert_status put_copy(moert_saver *s, moert_tensor_writer *writer, const char *name,
                             moert_model_range range) {
    enum { PIECE = MOERT_PIECE_BYTES / sizeof(float) };
    const float *values = s->copy + s->next_value;
    for (size_t done = 0, part; done < range.count && !s->dropped; done += part) {
        const size_t first = range.first + done;
        part = moert_min(range.count - done, PIECE - first % PIECE); /* up to a piece's end */
        MOERT_TRY(moert_writer_put(writer, name, first, part, values + done));
        keep_rate(s, part * sizeof *values);
    }
    s->next_value += range.count;
    return MOERT_OK;
}

/* Writes this rank's values in a file. */
static moert_status put_values(moert_saver *s, moert_tensor_writer *writer,
                               const saved_file *file) {
    const size_t count = moert_model_tensor_count(s->model);
    for (size_t e = file->first; e < file->first + file->count; e++) {
        const moert_model_tensor *tensor = &moert_model_tensors(s->model)[e % count];
        const moert_model_range shard = moert_model_shard(tensor);
        const char *name = s->specs[e].name;
        size_t at;
        if (shard.count == 0)
            continue;
        if (s->busy) {
            MOERT_TRY(put_copy(s, writer, name, shard));
            continue;
        }
        const moert_buffer *values =
            moert_values_of(s->options.optimizer, tensor, (moert_value_kind)(e / count), &at);
        MOERT_TRY(moert_put_floats(writer, name, shard.first, shard.count, values, at));
    }
    return MOERT_OK;
}

static moert_status write_file(moert_saver *s, const saved_file *file) {
    moert_tensor_writer *writer;
    MOERT_TRY(moert_manifest_add(s->manifest, file->name));
    MOERT_TRY(open_writer(s, file, false, &writer));
    moert_writer_watch(writer, s->manifest);
    const moert_status status = put_values(s, writer, file);
    char *message = moert_error_keep();
    return moert_error_first(message, status, moert_writer_close(writer));
}

/* Each rank writes its values, with their checksums. */
static moert_status write_files(moert_saver *s) {
    s->next_value = s->written_bytes = 0;
    s->writing_ns = moert_clock_ns();
    MOERT_TRY(moert_manifest_create(s->temporary, &s->manifest));
    for (size_t i = 0; i < s->file_count; i++)
        MOERT_TRY(write_file(s, &s->files[i]));
    if (has_index(s))
        MOERT_TRY(moert_manifest_add(s->manifest, index_name));
    MOERT_TRY(moert_manifest_add(s->manifest, "config.json"));
    return is_checkpoint(s) ? moert_manifest_add(s->manifest, "state.json") : MOERT_OK;
}

static moert_status sum_rest(moert_saver *s) {
    return moert_verify_sum(s->world, s->manifest);
}

/* Rank 0 completes the directory. */
static moert_status commit(moert_saver *s) {
    if (!is_first(s))
        return MOERT_OK;
    MOERT_TRY(moert_manifest_write(s->manifest));
    MOERT_TRY(moert_durable_commit(s->temporary, s->path));
    /* older checkpoints stay while steps are skipped */
    if (is_checkpoint(s) && s->state.skipped_in_row == 0 &&
        moert_checkpoint_prune(s->options.directory, s->state.step, s->options.keep) != MOERT_OK)
        MOERT_WARN("%s is saved, but not all older checkpoints could be removed: %s", s->path,
                   moert_last_error());
    return MOERT_OK;
}

static const struct {
    moert_status (*work)(moert_saver *saver);
    bool exchanges; /* the ranks then exchange checksums */
} stages[] = {{create_files, false}, {write_files, true}, {sum_rest, true}, {commit, false}};

/* Ends a stage, of which this rank's work has the result `status`. Collective. */
static moert_status end_stage(moert_saver *s, moert_status status) {
    MOERT_TRY(moert_comm_agree(s->world, status));
    if (stages[s->stage].exchanges)
        MOERT_TRY(moert_verify_exchange(s->world, s->manifest));
    s->stage++;
    return MOERT_OK;
}

/* Ends a save. Removes what a failed one has written. */
static moert_status end_save(moert_saver *s, moert_status status) {
    if (status != MOERT_OK && s->temporary != NULL && is_first(s)) {
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

/* Runs all stages of a save in this thread. Collective. */
static moert_status run_stages(moert_saver *s) {
    moert_status status = MOERT_OK;
    for (s->stage = 0; status == MOERT_OK && s->stage < MOERT_COUNT(stages);)
        status = end_stage(s, stages[s->stage].work(s));
    return end_save(s, status);
}

/* ---- a save beside training ---- */

static void work(moert_saver *s) {
    s->status = stages[s->stage].work(s);
    s->message = s->status != MOERT_OK ? moert_error_keep() : NULL;
    s->ended = true;
}

static void *work_beside(void *argument) {
    moert_phase_beside();
    work(argument);
    return NULL;
}

/* Starts a thread that works on the stage. If the system allows none, this thread does. */
static void begin_stage(moert_saver *s) {
    s->ended = false;
    s->has_thread = pthread_create(&s->thread, NULL, work_beside, s) == 0;
    if (!s->has_thread)
        work(s);
}

/* Waits for the thread; returns its result. The watchdog sees its progress. */
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

/* Ends a stage, and begins the next one or ends the save. Collective. */
static moert_status go_on(moert_saver *s) {
    const moert_status status = end_stage(s, join(s));
    if (status != MOERT_OK || s->stage == MOERT_COUNT(stages))
        return end_save(s, status);
    begin_stage(s);
    return MOERT_OK;
}

/* Copies this rank's values to host memory. */
static moert_status take_copy(moert_saver *s) {
    const size_t count = moert_model_tensor_count(s->model);
    const moert_model_tensor *tensor = moert_model_tensors(s->model);
    float *to = s->copy;
    for (size_t e = 0; e < CHECKPOINT_KINDS * count; e++) {
        const moert_model_range shard = moert_model_shard(&tensor[e % count]);
        size_t at;
        if (shard.count == 0)
            continue;
        const moert_buffer *values = moert_values_of(s->options.optimizer, &tensor[e % count],
                                                     (moert_value_kind)(e / count), &at);
        MOERT_TRY(moert_buffer_read(values, at * sizeof *to, to, shard.count * sizeof *to));
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
    return CHECKPOINT_KINDS * floats;
}

moert_status moert_saver_create(const moert_saver_options *options, moert_saver **saver) {
    moert_saver *s;
    MOERT_TRY(MOERT_NEW(&s));
    s->options = *options;
    s->model = options->optimizer->model;
    s->world = moert_model_mesh(s->model)->world;
    moert_status status =
        moert_value_specs(s->model, MOERT_VALUES_WEIGHTS, CHECKPOINT_KINDS, &s->specs);
    if (status == MOERT_OK)
        status = make_files(s, 0);
    const size_t floats = options->beside ? moert_saver_floats(s->model) : 0;
    if (status == MOERT_OK && options->beside)
        status = MOERT_NEW_ARRAY(&s->copy, floats);
    if (status == MOERT_OK && options->beside)
        memset(s->copy, 0, floats * sizeof *s->copy); /* no step waits for its pages */
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
    moert_value_specs_free(s->model, CHECKPOINT_KINDS, s->specs);
    MOERT_FREE(s->path, s->copy, s->files, s);
}

/* Prepares a save of `state`. Collective. */
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
    const moert_status status = prepare(s, state);
    return status == MOERT_OK ? run_stages(s) : end_save(s, status);
}

moert_status moert_saver_begin(moert_saver *s, const moert_run_state *state) {
    moert_status status = prepare(s, state);
    if (status == MOERT_OK)
        status = moert_comm_agree(s->world, take_copy(s));
    if (status != MOERT_OK)
        return end_save(s, status);
    s->busy = true;
    begin_stage(s);
    return MOERT_OK;
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
    while (s->busy)
        status = go_on(s);
    return status;
}

moert_saved moert_saver_last(const moert_saver *s) {
    return (moert_saved){s->state.step, s->path, 1e-9 * (double)(s->ended_ns - s->begun_ns)};
}

/* ---- models ---- */

moert_status moert_model_save(moert_model *model, const char *config_text, size_t file_bytes,
                              const char *path) {
    moert_saver s = {.options = {.config_text = config_text},
                     .model = model,
                     .world = moert_model_mesh(model)->world};
    moert_phase_set(MOERT_PHASE_SAVE);
    moert_status status = moert_value_specs(model, MOERT_VALUES_WEIGHTS, 1, &s.specs);
    if (status == MOERT_OK)
        status = make_files(&s, file_bytes);
    if (status == MOERT_OK)
        status = moert_text_path(&s.path, "%s", path);
    if (status == MOERT_OK)
        status = moert_text_path(&s.temporary, "%s.tmp", path);
    status = moert_comm_agree(s.world, status);
    status = status == MOERT_OK ? run_stages(&s) : end_save(&s, status);
    moert_value_specs_free(model, 1, s.specs);
    MOERT_FREE(s.path, s.files);
    return status;
}
