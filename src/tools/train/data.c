/* Opens the data that the options of moert-train name. */
#include "tools/train/data.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "data/blend.h"
#include "io/json.h"
#include "io/safetensors.h"

/* *values = the values of int32 tensor `name`, whose shape must be `shape`; NULL if the file has no
 * such tensor. */
static moert_status read_tensor(const char *path, const moert_tensors *files, const char *name,
                                const size_t shape[3], int32_t **values) {
    const moert_tensor *tensor = moert_tensors_find(files, name);
    if (tensor == NULL)
        return MOERT_OK;
    if (tensor->rank != 3 || memcmp(tensor->shape, shape, 3 * sizeof *shape) != 0)
        return MOERT_FAIL(ERROR_MISMATCH,
                          "%s: the tensor %s must have the shape of tokens, [%zu,%zu,%zu]", path,
                          name, shape[0], shape[1], shape[2]);
    MOERT_TRY(MOERT_NEW_ARRAY(values, tensor->elements));
    return moert_tensor_read_i32(tensor, 0, tensor->elements, *values);
}

static moert_status read_tokens(const char *path, const moert_tensors *files,
                                moert_train_data *data) {
    const moert_tensor *tokens = moert_tensors_find(files, "tokens");
    if (tokens == NULL || tokens->rank != 3)
        return MOERT_FAIL(ERROR_MISMATCH, "%s holds no tensor tokens[steps,B,S+1]", path);
    const size_t *shape = tokens->shape;
    const size_t shorter[3] = {shape[0], shape[1], shape[2] > 0 ? shape[2] - 1 : 0};
    MOERT_TRY(read_tensor(path, files, "tokens", shape, &data->tokens));
    MOERT_TRY(read_tensor(path, files, "targets", shorter, &data->targets));
    const moert_replay replay = {.name = path,
                                 .steps = shape[0],
                                 .batch = shape[1],
                                 .row = shape[2],
                                 .tokens = data->tokens,
                                 .targets = data->targets};
    return moert_data_from_array(&replay, &data->data);
}

static moert_status open_token_tensor(const char *path, moert_train_data *data) {
    moert_tensors *files;
    MOERT_TRY(moert_tensors_open(path, &files));
    const moert_status status = read_tokens(path, files, data);
    moert_tensors_close(files);
    return status;
}

/* ---- blends ---- */

/* The sources of a blend. */
typedef struct blend {
    uint64_t *weights;  /* [count] */
    char **paths;       /* [count] */
    moert_data **parts; /* [count] */
    size_t count, opened;
} blend;

static moert_status make_room(blend *b, size_t count) {
    MOERT_TRY(MOERT_NEW_ARRAY(&b->weights, count));
    MOERT_TRY(MOERT_NEW_ARRAY(&b->paths, count));
    return MOERT_NEW_ARRAY(&b->parts, count);
}

static void free_blend(blend *b) {
    for (size_t i = 0; i < b->count; i++)
        free(b->paths[i]);
    for (size_t i = 0; i < b->opened; i++)
        moert_data_destroy(b->parts[i]);
    MOERT_FREE(b->weights, b->paths, b->parts);
}

static moert_status add_source(blend *b, double weight, const char *text, char *path) {
    for (size_t i = 0; i < b->count; i++)
        if (strcmp(b->paths[i], path) == 0) {
            free(path);
            return MOERT_FAIL(ERROR_USAGE,
                              "a blend names %s twice; give it once, with the sum of "
                              "the weights",
                              b->paths[i]);
        }
    b->paths[b->count++] = path;
    return moert_blend_weight(weight, text, &b->weights[b->count - 1]);
}

/* Adds WEIGHT PATH pairs, given as words. */
static moert_status add_words(blend *b, const char *const *words, size_t count) {
    if (count % 2 != 0)
        return MOERT_FAIL(ERROR_USAGE,
                          "--data %s ...: a blend has a weight before each path, such as 0.7 books "
                          "0.3 code",
                          words[0]);
    for (size_t i = 0; i < count; i += 2) {
        char *rest, *path;
        const double weight = strtod(words[i], &rest);
        MOERT_TRY(moert_text_path(&path, "%s", words[i + 1]));
        const bool is_number =
            rest != words[i] && *rest == '\0' && words[i][strspn(words[i], "0123456789.")] == '\0';
        MOERT_TRY(add_source(b, is_number ? weight : 0.0, words[i], path));
    }
    return MOERT_OK;
}

/* Adds WEIGHT PATH pairs that are given in one word. */
static moert_status add_word(blend *b, const char *word) {
    const size_t bytes = strlen(word) + 1;
    char *text = NULL, *rest = NULL;
    const char **words = NULL;
    size_t count = 0;
    moert_status status = MOERT_NEW_ARRAY(&text, bytes);
    if (status == MOERT_OK)
        status = MOERT_NEW_ARRAY(&words, bytes);
    if (status == MOERT_OK) {
        memcpy(text, word, bytes);
        for (char *at = strtok_r(text, " ", &rest); at != NULL; at = strtok_r(NULL, " ", &rest))
            words[count++] = at;
        status = make_room(b, count);
    }
    if (status == MOERT_OK)
        status = add_words(b, words, count);
    MOERT_FREE(words, text);
    return status;
}

/* Adds the members of a JSON object, {"PATH": WEIGHT, ...}. Paths are relative to the directory of
 * `file`. */
static moert_status add_object(blend *b, const char *file, const json_t *object) {
    const char *path, *slash = strrchr(file, '/');
    const json_t *weight;
    json_object_foreach((json_t *)object, path, weight) {
        char text[32], *whole;
        if (!json_is_number(weight))
            return MOERT_FAIL(ERROR_FORMAT,
                              "%s: \"%s\" has no weight; a blend is {\"books\": 0.7, \"code\": "
                              "0.3} (if the file is text to train on, name its directory)",
                              file, path);
        snprintf(text, sizeof text, "%.10g", json_number_value(weight));
        const int directory = path[0] != '/' && slash != NULL ? (int)(slash + 1 - file) : 0;
        MOERT_TRY(moert_text_path(&whole, "%.*s%s", directory, file, path));
        MOERT_TRY(add_source(b, json_number_value(weight), text, whole));
    }
    return b->count > 0 ? MOERT_OK
                        : MOERT_FAIL(ERROR_FORMAT, "%s: the blend names no sources", file);
}

static moert_status add_file(blend *b, const char *file) {
    enum { MOST_BYTES = 1 << 20 };
    json_t *object;
    MOERT_TRY(moert_json_read(file, "the blend", MOST_BYTES, &object));
    moert_status status = make_room(b, json_object_size(object));
    if (status == MOERT_OK)
        status = add_object(b, file, object);
    json_decref(object);
    return status;
}

static moert_status open_source(const char *path, const moert_train_data_options *o,
                                moert_data **data) {
    moert_source *source;
    MOERT_TRY(moert_source_open(&path, 1, o->token_bits, &source));
    return moert_data_from_source(source, &o->split, data);
}

/* Opens the sources of a blend. `status` is the result of listing the sources; if `status` is a
 * failure, only returns it. */
static moert_status open_blend(blend *b, const moert_train_data_options *o, moert_status status,
                               moert_data **data) {
    for (; status == MOERT_OK && b->opened < b->count; b->opened += status == MOERT_OK)
        status = open_source(b->paths[b->opened], o, &b->parts[b->opened]);
    if (status == MOERT_OK) {
        b->opened = 0; /* moert_data_from_blend takes ownership of the sources, even if it fails */
        status = moert_data_from_blend(b->parts, b->weights, b->count, data);
    }
    free_blend(b);
    return status;
}

static moert_status open_paths(const moert_train_data_options *o, moert_data **data) {
    const moert_option_list *paths = o->paths;
    const char *first = paths->words[0];
    const bool begins = first[0] >= '0' && first[0] <= '9' && access(first, F_OK) != 0;
    blend b = {0};
    moert_source *source;
    if (paths->count == 1 && moert_text_ends_with(first, ".json"))
        return open_blend(&b, o, add_file(&b, first), data);
    if (paths->count == 1 && begins && strchr(first, ' ') != NULL)
        return open_blend(&b, o, add_word(&b, first), data);
    if (paths->count > 1 && begins) {
        moert_status status = make_room(&b, paths->count);
        if (status == MOERT_OK)
            status = add_words(&b, paths->words, paths->count);
        return open_blend(&b, o, status, data);
    }
    MOERT_TRY(moert_source_open(paths->words, paths->count, o->token_bits, &source));
    return moert_data_from_source(source, &o->split, data);
}

void moert_train_data_say(const moert_context *context, const moert_data *data, size_t sequences) {
    const size_t rows = moert_data_describe(data).rows;
    if (rows > 0)
        moert_program_say(context, "an epoch has %zu sequences; %zu sequences are %.4g epoch%s\n",
                          rows, sequences, (double)sequences / (double)rows,
                          sequences == rows ? "" : "s");
    for (size_t i = 0; i < moert_data_describe(data).parts; i++) {
        const moert_data_info part = moert_data_describe(moert_data_part(data, i));
        const uint64_t count = moert_data_part_count(data, i, sequences);
        moert_program_say(context, "%s: %zu tokens, %llu sequences", part.name, part.tokens,
                          (unsigned long long)count);
        if (part.rows > 0)
            moert_program_say(context, ", %.4g epochs", (double)count / (double)part.rows);
        moert_program_say(context, "\n");
    }
}

moert_status moert_train_data_open(const moert_train_data_options *options,
                                   moert_train_data *data) {
    const char *file = options->token_file;
    moert_source *source;
    if ((options->paths->count > 0) == (file != NULL))
        return MOERT_FAIL(ERROR_USAGE,
                          "give the training data by --data FILE|DIR... or by --tokens FILE");
    if (file == NULL)
        return open_paths(options, &data->data);
    if (moert_text_ends_with(file, ".safetensors"))
        return open_token_tensor(file, data);
    MOERT_TRY(moert_source_open_raw(file, options->token_bits, &source));
    return moert_data_from_source(source, &options->split, &data->data);
}

void moert_train_data_close(moert_train_data *data) {
    moert_data_destroy(data->data);
    MOERT_FREE(data->tokens, data->targets);
}
