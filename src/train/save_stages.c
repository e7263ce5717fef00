/* The files of a save, and the stages in which they are written. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/phase.h"
#include "base/text.h"
#include "io/durable.h"
#include "io/json.h"
#include "model/file_runs.h"
#include "train/saver.h"
#include "train/values.h"
#include "train/checksums.h"

static const char index_name[] = "model.safetensors.index.json";

static bool is_checkpoint(const moert_saver *s) {
    return s->options.optimizer != NULL;
}

/* ---- the files ---- */

static size_t spec_bytes(const moert_tensor_spec *spec) {
    size_t bytes = moert_file_type_bytes(spec->type);
    for (size_t i = 0; i < spec->rank; i++)
        bytes *= spec->shape[i];
    return bytes;
}

static moert_status add_file(moert_saver *s, size_t *room, size_t first) {
    MOERT_TRY(MOERT_GROW(&s->files, room, s->file_count + 1));
    s->files[s->file_count++].first = first;
    return MOERT_OK;
}

/* Lists the files. The weights are in one file or, if file_bytes is set, in several. Each file has
 * the next tensors that fit into file_bytes; a larger tensor has its own file. The files have the
 * names that transformers gives them. A checkpoint has one more file, for the moments. */
moert_status moert_saver_make_files(moert_saver *s, size_t file_bytes) {
    const size_t tensors = moert_model_file_tensor_count(s->model);
    size_t room = 0, left_bytes = 0;
    for (size_t i = 0; i < tensors; i++) {
        const size_t bytes = spec_bytes(&s->specs[i]);
        if (i == 0 || (file_bytes > 0 && bytes > left_bytes)) {
            MOERT_TRY(add_file(s, &room, i));
            left_bytes = file_bytes;
        }
        left_bytes -= moert_min(bytes, left_bytes);
        s->files[s->file_count - 1].count++;
    }
    for (size_t i = 0; i < s->file_count; i++)
        if (s->file_count == 1)
            snprintf(s->files[i].name, sizeof s->files[i].name, "model.safetensors");
        else
            snprintf(s->files[i].name, sizeof s->files[i].name, "model-%05zu-of-%05zu.safetensors",
                     i + 1, s->file_count);
    if (!is_checkpoint(s))
        return MOERT_OK;
    MOERT_TRY(add_file(s, &room, tensors));
    s->files[s->file_count - 1] = (moert_saved_file){
        "optimizer.safetensors", tensors, (moert_checkpoint_kinds(s->model) - 1) * tensors};
    return MOERT_OK;
}

/* ---- the stages ---- */

/* Whether an index file says which weight is in which file. */
static bool has_index(const moert_saver *s) {
    return s->files[0].count < moert_model_file_tensor_count(s->model);
}

static moert_status open_writer(const moert_saver *s, const moert_saved_file *file, bool create,
                                moert_tensor_writer **writer) {
    char *path;
    MOERT_TRY(moert_text_path(&path, "%s/%s", s->temporary, file->name));
    const moert_status status = moert_writer_open(path, s->specs + file->first, file->count,
                                                  moert_value_metadata, create, writer);
    free(path);
    return status;
}

static moert_status create_file(const moert_saver *s, const moert_saved_file *file) {
    moert_tensor_writer *writer;
    MOERT_TRY(open_writer(s, file, true, &writer));
    return moert_writer_close(writer);
}

/* Writes the index: {"metadata": {"total_size": bytes}, "weight_map": {tensor: file, ...}}. */
static moert_status write_index(const moert_saver *s) {
    json_t *map = json_object();
    size_t bytes = 0;
    bool whole = true;
    for (size_t f = 0; f < s->file_count; f++)
        for (size_t i = s->files[f].first; i < s->files[f].first + s->files[f].count; i++) {
            json_t *name = json_string(s->files[f].name);
            whole &= json_object_set_new(map, s->specs[i].name, name) == 0;
            bytes += spec_bytes(&s->specs[i]);
        }
    json_t *root =
        json_pack("{s{sI} so}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map);
    if (!whole) {
        json_decref(root);
        return MOERT_FAIL(ERROR_MEMORY, "no room for %s", index_name);
    }
    return moert_json_write_new(s->temporary, index_name, root, JSON_INDENT(2));
}

/* Copies a model's files that have no weights (names[]), as far as they exist. */
static moert_status copy_companions(const moert_saver *s) {
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "vocab.txt",
                                        "tokenizer.model",
                                        "spiece.model",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "generation_config.json"};
    moert_status status = MOERT_OK;
    for (size_t i = 0; i < MOERT_COUNT(names) && status == MOERT_OK; i++) {
        char *from = NULL, *to = NULL;
        bool there = false;
        status = moert_text_path(&from, "%s/%s", s->companions, names[i]);
        if (status == MOERT_OK)
            status = moert_text_path(&to, "%s/%s", s->temporary, names[i]);
        if (status == MOERT_OK)
            status = moert_file_exists(&there, "%s", from);
        if (there)
            status = moert_durable_copy(from, to);
        MOERT_FREE(from, to);
    }
    return status;
}

/* Rank 0 writes the small files, and the headers of the tensor files, to an empty directory. */
static moert_status create_files(moert_saver *s) {
    if (!moert_saver_is_first(s))
        return MOERT_OK;
    MOERT_TRY(moert_remove_tree(s->temporary));
    MOERT_TRY(moert_make_directories(s->temporary));
    MOERT_TRY(moert_durable_write_in(s->temporary, "config.json", s->options.config_text));
    if (s->companions != NULL)
        MOERT_TRY(copy_companions(s));
    if (has_index(s))
        MOERT_TRY(write_index(s));
    if (is_checkpoint(s))
        MOERT_TRY(moert_run_state_write(s->temporary, &s->state));
    for (size_t i = 0; i < s->file_count; i++)
        MOERT_TRY(create_file(s, &s->files[i]));
    return MOERT_OK;
}

/* Delays the thread until the bytes written are within the bandwidth limit. */
static void keep_rate(moert_saver *s, size_t bytes) {
    enum { LONGEST_NS = 50000000 };
    const double ns_per_byte =
        1e9 * (double)moert_comm_size(s->world) / s->options.bytes_per_s; /* for this rank */
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

/* Writes the values of a tensor from the copy in host memory. */
static moert_status put_copy(moert_saver *s, moert_tensor_writer *writer, const char *name,
                             const moert_model_tensor *tensor) {
    enum { PIECE = MOERT_PIECE_BYTES / sizeof(float) };
    const moert_model_range shard = moert_model_shard(tensor);
    moert_file_runs runs = moert_file_runs_of(tensor, shard, tensor->transposed);
    moert_status status = MOERT_OK;
    float *scratch;
    MOERT_TRY(MOERT_NEW_ARRAY(&scratch, moert_min(shard.count, PIECE)));
    while (status == MOERT_OK && !s->dropped && moert_file_runs_next(&runs, PIECE)) {
        status = moert_writer_put(writer, name, runs.first, runs.count,
                                  moert_file_runs_gather(&runs, s->copy + s->next_value, scratch));
        keep_rate(s, runs.count * sizeof(float));
    }
    free(scratch);
    s->next_value += shard.count;
    return status;
}

/* Writes this rank's shard of a tensor: the weight or one of its moments, as `kind` says. */
static moert_status put_tensor(moert_saver *s, moert_tensor_writer *writer, const char *name,
                               const moert_model_tensor *tensor, moert_value_kind kind) {
    if (moert_model_shard(tensor).count == 0)
        return MOERT_OK;
    if (s->beside)
        return put_copy(s, writer, name, tensor);
    const moert_elements values = moert_values_of(s->options.optimizer, tensor, kind);
    return moert_values_put(writer, name, tensor, &values);
}

/* Writes this rank's values in a file, in the order in which the copy has them. */
static moert_status put_values(moert_saver *s, moert_tensor_writer *writer,
                               const moert_saved_file *file) {
    const moert_model_tensor *tensor = moert_model_tensors(s->model);
    const size_t tensors = moert_model_tensor_count(s->model);
    const size_t files = moert_model_file_tensor_count(s->model);
    const size_t kinds = is_checkpoint(s) ? moert_checkpoint_kinds(s->model) : 1;
    for (size_t k = 0; k < kinds; k++)
        for (size_t i = 0; i < tensors; i++) {
            const size_t e = k * files + tensor[i].file;
            if (e >= file->first && e < file->first + file->count)
                MOERT_TRY(put_tensor(s, writer, s->specs[e].name, &tensor[i], (moert_value_kind)k));
        }
    return MOERT_OK;
}

static moert_status write_file(moert_saver *s, const moert_saved_file *file) {
    moert_tensor_writer *writer;
    MOERT_TRY(moert_manifest_add(s->manifest, file->name));
    MOERT_TRY(open_writer(s, file, false, &writer));
    moert_writer_watch(writer, s->manifest);
    const moert_status status = put_values(s, writer, file);
    char *message = moert_error_keep();
    return moert_error_first(message, status, moert_writer_close(writer));
}

/* Each rank writes its values to the files, and computes their checksums. */
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
    return moert_checksums_sum(s->world, s->manifest);
}

/* Rank 0 writes the manifest and gives the directory its final name. */
static moert_status commit(moert_saver *s) {
    if (!moert_saver_is_first(s))
        return MOERT_OK;
    MOERT_TRY(moert_manifest_write(s->manifest));
    moert_keep keep = s->options.keep;
    if (s->options.keeps_best)
        keep.step = s->state.best.step;
    MOERT_TRY(moert_durable_commit(s->temporary, s->path));
    /* after skipped steps, older checkpoints are kept */
    if (is_checkpoint(s) && s->state.skipped_in_row == 0 &&
        moert_checkpoint_prune(s->options.directory, s->state.step, keep) != MOERT_OK)
        MOERT_WARN("%s is saved, but not all older checkpoints could be removed: %s", s->path,
                   moert_last_error());
    return MOERT_OK;
}

const moert_save_stage moert_save_stages[MOERT_SAVE_STAGES] = {
    {create_files, false}, {write_files, true}, {sum_rest, true}, {commit, false}};
