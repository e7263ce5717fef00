/* Writes and reads model directories and checkpoints; checkpoint_list.c names and lists them. */
#include "train/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "base/memory.h"
#include "base/phase.h"
#include "base/text.h"
#include "io/durable.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "train/shared_file.h"
#include "train/verify.h"

enum { STATE_LIMIT_BYTES = 65536, STATE_FORMAT = 1 };

/* One kind of value that a file holds for each tensor of the model. */
typedef struct value_set {
    const char *prefix; /* prefix of the tensors' names in the file */
    enum { WEIGHTS, GRADIENTS, FIRST_MOMENTS, SECOND_MOMENTS } kind;
} value_set;

static const value_set weight_set[] = {{"", WEIGHTS}}, gradient_set[] = {{"grad.", GRADIENTS}};
static const value_set moment_sets[] = {{"first_moment.", FIRST_MOMENTS},
                                        {"second_moment.", SECOND_MOMENTS}};

/* The buffer of a tensor's values of a kind; *at = the offset of this rank's shard in it. */
static moert_buffer *values_of(const moert_optimizer *optimizer, const moert_model_tensor *tensor,
                               int kind, size_t *at) {
    *at = tensor->offset + moert_model_shard(tensor).first;
    if (kind == WEIGHTS)
        return tensor->block->weight;
    if (kind == GRADIENTS)
        return tensor->block->gradient;
    const moert_moments *moments = moert_optimizer_moments(optimizer, tensor, at);
    return kind == FIRST_MOMENTS ? moments->first : moments->second;
}

/* ---- writing ---- */

/* On failure *specs may be allocated in part. */
static moert_status make_specs(const moert_model *model, const value_set *sets, size_t set_count,
                               moert_tensor_spec **specs) {
    size_t count = moert_model_tensor_count(model);
    const moert_model_tensor *tensor = moert_model_tensors(model);
    MOERT_TRY(MOERT_NEW_ARRAY(specs, count * set_count));
    for (size_t s = 0; s < set_count; s++)
        for (size_t i = 0; i < count; i++) {
            moert_tensor_spec *spec = &(*specs)[s * count + i];
            *spec = (moert_tensor_spec){moert_text_format("%s%s", sets[s].prefix, tensor[i].name),
                                        MOERT_FILE_F32,
                                        tensor[i].rank,
                                        {tensor[i].shape[0], tensor[i].shape[1]}};
            if (spec->name == NULL)
                return MOERT_FAIL(ERROR_MEMORY, "no room for tensor names");
        }
    return MOERT_OK;
}

/* The contents of one file: each set of values of all tensors of the model. */
typedef struct value_file {
    moert_model *model;
    const moert_optimizer *optimizer;
    const value_set *sets;
    size_t set_count;
    const char *name;         /* in the directory of the manifest */
    moert_manifest *manifest; /* gets the file and its checksums, if not NULL */
    moert_tensor_spec *specs; /* [set_count, tensors] */
} value_file;

static moert_status put_shards(const void *context, moert_tensor_writer *writer) {
    const value_file *file = context;
    const size_t count = moert_model_tensor_count(file->model);
    const moert_model_tensor *tensor = moert_model_tensors(file->model);
    if (file->manifest != NULL) {
        MOERT_TRY(moert_manifest_add(file->manifest, file->name));
        moert_writer_watch(writer, file->manifest);
    }
    for (size_t i = 0; i < count * file->set_count; i++) {
        const moert_model_range shard = moert_model_shard(&tensor[i % count]);
        size_t at;
        if (shard.count == 0)
            continue;
        const moert_buffer *values =
            values_of(file->optimizer, &tensor[i % count], file->sets[i / count].kind, &at);
        MOERT_TRY(
            moert_put_floats(writer, file->specs[i].name, shard.first, shard.count, values, at));
    }
    return MOERT_OK;
}

/* Writes one safetensors file with all ranks; `status` is this rank's so far. Collective. */
static moert_status write_file(value_file *file, const char *path, bool settle,
                               moert_status status) {
    static const char *const metadata[] = {"format", "pt", NULL};
    const size_t count = moert_model_tensor_count(file->model) * file->set_count;
    if (status == MOERT_OK)
        status = make_specs(file->model, file->sets, file->set_count, &file->specs);
    const moert_shared_file shared = {path, file->specs, count, metadata, put_shards, file};
    status = moert_shared_file_write(moert_model_mesh(file->model)->world, &shared, settle, status);
    for (size_t i = 0; file->specs != NULL && i < count; i++)
        free((char *)file->specs[i].name);
    free(file->specs);
    return status;
}

/* Writes all safetensors files to the directory of the manifest. Collective. */
static moert_status write_files(moert_model *model, const moert_optimizer *optimizer,
                                moert_manifest *manifest) {
    value_file files[] = {
        {model, optimizer, weight_set, 1, "model.safetensors", manifest, NULL},
        {model, optimizer, moment_sets, 2, "optimizer.safetensors", manifest, NULL}};
    moert_status status = MOERT_OK;
    for (size_t i = 0; i < (optimizer != NULL ? 2 : 1) && status == MOERT_OK; i++) {
        char *path;
        status = moert_text_path(&path, "%s/%s", moert_manifest_directory(manifest), files[i].name);
        status = write_file(&files[i], path, false, status);
        free(path);
    }
    return status;
}

static moert_status write_text(const char *directory, const char *file, const char *text) {
    char *path;
    MOERT_TRY(moert_text_path(&path, "%s/%s", directory, file));
    const moert_status status = moert_durable_write(path, text);
    free(path);
    return status;
}

static moert_status write_state(const char *directory, const moert_run_state *state) {
    json_t *root = json_object();
    json_object_set_new(root, "format", json_integer(STATE_FORMAT));
#define PUT(field) json_object_set_new(root, #field, json_integer((json_int_t)state->field));
    MOERT_RUN_STATE_TABLE(PUT)
#undef PUT
    json_object_set_new(root, "data", json_string(state->data));
    json_object_set_new(root, "schedule", json_string(state->schedule));
    char *text;
    moert_status status =
        moert_json_text("state.json", root, JSON_INDENT(1) | JSON_PRESERVE_ORDER, &text);
    json_decref(root);
    MOERT_TRY(status);
    status = write_text(directory, "state.json", text);
    free(text);
    return status;
}

/* Writes the small files to an empty directory. */
static moert_status write_texts(const char *directory, const char *config_text,
                                const moert_run_state *state) {
    MOERT_TRY(moert_remove_tree(directory));
    MOERT_TRY(moert_make_directories(directory));
    MOERT_TRY(write_text(directory, "config.json", config_text));
    return state != NULL ? write_state(directory, state) : MOERT_OK;
}

/* Writes all files and their manifest. Collective. */
static moert_status write_directory(moert_model *model, const moert_optimizer *optimizer,
                                    const char *config_text, const moert_run_state *state,
                                    const char *directory) {
    moert_comm *world = moert_model_mesh(model)->world;
    moert_manifest *manifest = NULL;
    moert_status status = moert_manifest_create(directory, &manifest);
    if (status == MOERT_OK && moert_comm_rank(world) == 0)
        status = write_texts(directory, config_text, state);
    MOERT_TRY_OR(done, moert_comm_agree(world, status));
    MOERT_TRY_OR(done, write_files(model, optimizer, manifest));
    status = moert_manifest_add(manifest, "config.json");
    if (status == MOERT_OK && state != NULL)
        status = moert_manifest_add(manifest, "state.json");
    MOERT_TRY_OR(done, moert_comm_agree(world, status));
    status = moert_verify_prepare(world, manifest);
done:
    moert_manifest_free(manifest);
    return status;
}

/* Writes the directory `path`: a checkpoint if optimizer and state are given, else a model.
 * Collective. */
static moert_status save(moert_model *model, const moert_optimizer *optimizer,
                         const char *config_text, const moert_run_state *state, const char *path) {
    moert_comm *world = moert_model_mesh(model)->world;
    bool first = moert_comm_rank(world) == 0;
    char *temporary;
    moert_phase_set(MOERT_PHASE_SAVE);
    moert_status status = moert_text_path(&temporary, "%s.tmp", path);
    MOERT_TRY_OR(done, moert_comm_agree(world, status));
    MOERT_TRY_OR(remove, write_directory(model, optimizer, config_text, state, temporary));
    status = moert_comm_agree(world, first ? moert_durable_commit(temporary, path) : MOERT_OK);
remove:
    if (status != MOERT_OK && first) {
        char *message = moert_error_keep();
        status = moert_error_first(message, status, moert_remove_tree(temporary));
    }
done:
    free(temporary);
    return status;
}

moert_status moert_model_save(moert_model *model, const char *config_text, const char *path) {
    return save(model, NULL, config_text, NULL, path);
}

moert_status moert_checkpoint_save(moert_optimizer *optimizer, const char *config_text,
                                   const moert_run_state *state, const char *path) {
    return save(optimizer->model, optimizer, config_text, state, path);
}

moert_status moert_gradients_save(moert_model *model, const char *path) {
    value_file file = {model, NULL, gradient_set, 1, NULL, NULL, NULL};
    return write_file(&file, path, true, MOERT_OK);
}

/* ---- reading ---- */

/* Second moments are means of squares; AdamW takes their root. */
static moert_status check_squares(const moert_tensors *files, const char *name,
                                  moert_model_range range) {
    enum { PIECE = 4096 };
    float values[PIECE];
    const moert_tensor *tensor = moert_tensors_find(files, name);
    for (size_t done = 0; done < range.count; done += PIECE) {
        const size_t count = moert_min(range.count - done, PIECE);
        MOERT_TRY(moert_tensor_read_f32(tensor, range.first + done, count, values));
        for (size_t i = 0; i < count; i++)
            if (values[i] < 0.0f)
                return MOERT_FAIL(ERROR_FORMAT, "%s: element %zu of tensor '%.200s' is %g, below 0",
                                  tensor->file, range.first + done + i, name, (double)values[i]);
    }
    return MOERT_OK;
}

static moert_status read_moments(moert_optimizer *optimizer, const char *path,
                                 moert_manifest *manifest) {
    const moert_model_tensor *tensor = moert_model_tensors(optimizer->model);
    size_t count = moert_model_tensor_count(optimizer->model);
    moert_tensors *files;
    moert_status status = MOERT_OK;
    MOERT_TRY(moert_tensors_open(path, &files));
    if (manifest != NULL)
        moert_tensors_watch(files, manifest);
    for (size_t s = 0; s < 2; s++)
        for (size_t i = 0; i < count && status == MOERT_OK; i++) {
            const moert_model_range shard = moert_model_shard(&tensor[i]);
            char name[128];
            size_t at = 0;
            moert_buffer *values =
                shard.count > 0 ? values_of(optimizer, &tensor[i], moment_sets[s].kind, &at) : NULL;
            snprintf(name, sizeof name, "%s%s", moment_sets[s].prefix, tensor[i].name);
            status = moert_model_read_values(files, name, &tensor[i], shard, values, at);
            if (status == MOERT_OK && moment_sets[s].kind == SECOND_MOMENTS)
                status = check_squares(files, name, shard);
        }
    moert_tensors_close(files);
    return status;
}

static moert_status read_number(const json_t *root, const char *path, const char *key,
                                uint64_t *value) {
    const json_t *number = json_object_get(root, key);
    if (!json_is_integer(number) || json_integer_value(number) < 0)
        return MOERT_FAIL(ERROR_FORMAT, "%s: '%s' is missing or not a whole number", path, key);
    *value = (uint64_t)json_integer_value(number);
    return MOERT_OK;
}

/* Reads a text; older versions wrote none. */
static moert_status read_text(const json_t *root, const char *path, const char *key, size_t bytes,
                              char *text) {
    const json_t *value = json_object_get(root, key);
    text[0] = '\0';
    if (value == NULL)
        return MOERT_OK;
    if (!json_is_string(value) || json_string_length(value) >= bytes)
        return MOERT_FAIL(ERROR_FORMAT, "%s: '%s' is not a text below %zu bytes", path, key, bytes);
    snprintf(text, bytes, "%s", json_string_value(value));
    return MOERT_OK;
}

static moert_status parse_state(const char *path, const json_t *root, moert_run_state *state) {
    uint64_t format;
    MOERT_TRY(read_number(root, path, "format", &format));
    if (format != STATE_FORMAT)
        return MOERT_FAIL(ERROR_FORMAT, "%s: format %llu, but this version reads format %d", path,
                          (unsigned long long)format, STATE_FORMAT);
#define GET(field) MOERT_TRY(read_number(root, path, #field, &state->field));
    MOERT_RUN_STATE_TABLE(GET)
#undef GET
    MOERT_TRY(read_text(root, path, "data", sizeof state->data, state->data));
    MOERT_TRY(read_text(root, path, "schedule", sizeof state->schedule, state->schedule));
    if (state->applied > state->step || state->skipped != state->step - state->applied)
        return MOERT_FAIL(ERROR_FORMAT, "%s: 'applied' %llu and 'skipped' %llu are not 'step' %llu",
                          path, (unsigned long long)state->applied,
                          (unsigned long long)state->skipped, (unsigned long long)state->step);
    if (state->skipped_in_row > state->skipped)
        return MOERT_FAIL(ERROR_FORMAT, "%s: 'skipped_in_row' %llu is above 'skipped' %llu", path,
                          (unsigned long long)state->skipped_in_row,
                          (unsigned long long)state->skipped);
    return MOERT_OK;
}

moert_status moert_run_state_read(const char *path, moert_run_state *state) {
    json_t *root;
    MOERT_TRY(moert_json_read(path, "it", STATE_LIMIT_BYTES, &root));
    moert_status status = parse_state(path, root, state);
    json_decref(root);
    return status;
}

moert_status moert_checkpoint_load(moert_optimizer *optimizer, const char *path,
                                   moert_manifest *manifest, moert_run_state *state) {
    char *state_path, *moments_path = NULL;
    moert_status status;
    MOERT_TRY_OR(done, moert_text_path(&state_path, "%s/state.json", path));
    MOERT_TRY_OR(done, moert_text_path(&moments_path, "%s/optimizer.safetensors", path));
    MOERT_TRY_OR(done, moert_run_state_read(state_path, state));
    status = read_moments(optimizer, moments_path, manifest);
done:
    MOERT_FREE(moments_path, state_path);
    MOERT_TRY(moert_comm_agree(moert_model_mesh(optimizer->model)->world, status));
    return moert_model_load(optimizer->model, path, manifest);
}
