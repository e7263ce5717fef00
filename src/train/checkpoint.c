/* Reads checkpoints, and writes the state of a run. save.c writes checkpoints; checkpoint_list.c
 * names and lists them. */
#include "train/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "base/memory.h"
#include "base/text.h"
#include "io/durable.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "model/file_runs.h"
#include "train/values.h"

enum { STATE_LIMIT_BYTES = 65536, STATE_FORMAT = 1 };

/* ---- the state of a run ---- */

moert_status moert_run_state_write(const char *directory, const moert_run_state *state) {
    json_t *root = json_object();
    json_object_set_new(root, "format", json_integer(STATE_FORMAT));
#define PUT(field) json_object_set_new(root, #field, json_integer((json_int_t)state->field));
    MOERT_RUN_STATE_TABLE(PUT)
#undef PUT
    json_object_set_new(root, "left_out", json_integer((json_int_t)state->left_out));
    if (state->best.step > 0)
        json_object_set_new(root, "best",
                            json_pack("{sI sI sf}", "step", (json_int_t)state->best.step, "since",
                                      (json_int_t)state->best.since, "loss", state->best.loss));
    if (state->batch_ramp[0] != '\0')
        json_object_set_new(root, "batch_ramp", json_string(state->batch_ramp));
    json_object_set_new(root, "data", json_string(state->data));
    json_object_set_new(root, "split", json_string(state->split));
    json_object_set_new(root, "schedule", json_string(state->schedule));
    json_object_set_new(root, "options", json_string(state->options));
    json_object_set_new(root, "recipes", json_true());
    return moert_json_write_new(directory, "state.json", root,
                                JSON_INDENT(1) | JSON_PRESERVE_ORDER);
}

static moert_status read_number(const json_t *root, const char *path, const char *key,
                                uint64_t *value) {
    const json_t *number = json_object_get(root, key);
    if (!json_is_integer(number) || json_integer_value(number) < 0)
        return MOERT_FAIL(ERROR_FORMAT, "%s: '%s' is missing or not a whole number", path, key);
    *value = (uint64_t)json_integer_value(number);
    return MOERT_OK;
}

/* Reads the string `key` of state.json; "" if an older version wrote none. */
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

/* Reads the lowest held-out loss; none if there was none, or an older version wrote none. */
static moert_status read_best(const json_t *root, const char *path, moert_best *best) {
    const json_t *object = json_object_get(root, "best"), *loss = json_object_get(object, "loss");
    *best = (moert_best){0};
    if (object == NULL)
        return MOERT_OK;
    MOERT_TRY(read_number(object, path, "step", &best->step));
    MOERT_TRY(read_number(object, path, "since", &best->since));
    if (!json_is_number(loss))
        return MOERT_FAIL(ERROR_FORMAT, "%s: 'loss' of 'best' is missing or not a number", path);
    best->loss = json_number_value(loss);
    return MOERT_OK;
}

static moert_status parse_state(const char *path, const json_t *root, moert_run_state *state) {
    uint64_t format;
    MOERT_TRY(read_number(root, path, "format", &format));
    if (format != STATE_FORMAT)
        return MOERT_FAIL(ERROR_FORMAT, "%s: has format %llu, but this version reads format %d",
                          path, (unsigned long long)format, STATE_FORMAT);
#define GET(field) MOERT_TRY(read_number(root, path, #field, &state->field));
    MOERT_RUN_STATE_TABLE(GET)
#undef GET
    state->left_out = 0;
    if (json_object_get(root, "left_out") != NULL)
        MOERT_TRY(read_number(root, path, "left_out", &state->left_out));
    MOERT_TRY(read_best(root, path, &state->best));
    MOERT_TRY(read_text(root, path, "batch_ramp", sizeof state->batch_ramp, state->batch_ramp));
    MOERT_TRY(read_text(root, path, "data", sizeof state->data, state->data));
    MOERT_TRY(read_text(root, path, "split", sizeof state->split, state->split));
    MOERT_TRY(read_text(root, path, "schedule", sizeof state->schedule, state->schedule));
    MOERT_TRY(read_text(root, path, "options", sizeof state->options, state->options));
    state->has_recipe = json_is_true(json_object_get(root, "recipes"));
    if (state->applied > state->step || state->left_out > state->step - state->applied ||
        state->skipped != state->step - state->applied - state->left_out)
        return MOERT_FAIL(
            ERROR_FORMAT,
            "%s: 'applied' %llu, 'skipped' %llu and 'left_out' %llu do not add up to 'step' %llu",
            path, (unsigned long long)state->applied, (unsigned long long)state->skipped,
            (unsigned long long)state->left_out, (unsigned long long)state->step);
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

/* ---- reading ---- */

/* Checks that no moment that is a mean of squares is negative, since the optimizer takes its square
 * root. */
static moert_status check_squares(const moert_tensors *files, const char *name,
                                  const moert_model_tensor *tensor, moert_model_range range) {
    enum { PIECE = 4096 };
    float values[PIECE];
    const moert_tensor *stored = moert_tensors_find(files, name);
    moert_file_runs runs = moert_file_runs_of(tensor, range, tensor->transposed);
    while (moert_file_runs_next(&runs, PIECE)) {
        MOERT_TRY(moert_tensor_read_f32(stored, runs.first, runs.count, values));
        for (size_t i = 0; i < runs.count; i++)
            if (values[i] < 0.0f)
                return MOERT_FAIL(ERROR_FORMAT, "%s: element %zu of tensor '%.200s' is %g, below 0",
                                  stored->file, runs.first + i, name, (double)values[i]);
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
    const moert_optimizer_row *row = moert_optimizer_of(optimizer->model);
    for (size_t m = 0; m < row->moments; m++)
        for (size_t i = 0; i < count && status == MOERT_OK; i++) {
            const moert_value_kind kind = MOERT_VALUES_MOMENTS + (moert_value_kind)m;
            const moert_model_range shard = moert_model_shard(&tensor[i]);
            char name[128];
            const moert_elements values = shard.count > 0
                                              ? moert_values_of(optimizer, &tensor[i], kind)
                                              : (moert_elements){.buffer = NULL};
            snprintf(name, sizeof name, "%s%s", row->moment[m].prefix, tensor[i].name);
            status = moert_model_read_values(files, name, &tensor[i], shard, &values);
            if (status == MOERT_OK && row->moment[m].is_square)
                status = check_squares(files, name, &tensor[i], shard);
        }
    moert_tensors_close(files);
    return status;
}

moert_status moert_checkpoint_state(const char *path, moert_run_state *state) {
    char *state_path;
    MOERT_TRY(moert_text_path(&state_path, "%s/state.json", path));
    const moert_status status = moert_run_state_read(state_path, state);
    free(state_path);
    return status;
}

moert_status moert_checkpoint_load(moert_optimizer *optimizer, const char *path,
                                   moert_manifest *manifest) {
    char *moments_path;
    moert_status status = moert_text_path(&moments_path, "%s/optimizer.safetensors", path);
    if (status == MOERT_OK)
        status = read_moments(optimizer, moments_path, manifest);
    free(moments_path);
    MOERT_TRY(moert_comm_agree(moert_model_mesh(optimizer->model)->world, status));
    return moert_model_load(optimizer->model, path, manifest);
}
