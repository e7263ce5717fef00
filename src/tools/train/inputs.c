/* Opens the model and the data that moert-train's options name. */
#include "tools/train/inputs.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "data/blend.h"
#include "io/json.h"
#include "io/safetensors.h"

/* The families of --form, in the order of its words. */
static const moert_family forms[] = {MOERT_FAMILY_MIXTRAL,     MOERT_FAMILY_QWEN3_MOE,
                                     MOERT_FAMILY_OLMOE,       MOERT_FAMILY_QWEN2_MOE,
                                     MOERT_FAMILY_GLM4_MOE,    MOERT_FAMILY_GPT_OSS,
                                     MOERT_FAMILY_DEEPSEEK_V2, MOERT_FAMILY_DEEPSEEK_V3};

/* Sets the sizes of shared experts and dense layers, which have no options: as wide as the experts
 * of a token together. */
static void size_dense(moert_model_config *config) {
    const size_t active = config->router.topk * config->intermediate;
    config->dense_intermediate = active + config->shared_experts * config->intermediate;
    config->shared_intermediate =
        config->shared_gate ? active : config->shared_experts * config->intermediate;
    for (size_t l = 0; l < config->first_dense && l < config->layers; l++)
        moert_layer_set_add(&config->dense_layers, l);
}

/* Sets what only DeepSeek's families have, from the head size: latent sizes in the proportions of
 * the released models, V3's 4 of 8 groups of experts if there are enough experts, and one dense
 * layer. */
static void size_deepseek(moert_model_config *config) {
    const size_t size = config->head_size, experts = config->router.experts;
    const bool v3 = config->family == MOERT_FAMILY_DEEPSEEK_V3;
    config->latent = (moert_latent_sizes){.q_rank = v3 ? 12 * size : 0, /* V2-Lite has none */
                                          .kv_rank = 4 * size,
                                          .nope = size,
                                          .rope = size / 2,
                                          .value = size};
    config->head_size = config->rope.width = size / 2; /* the head_dim of transformers */
    config->rope.interleaved = true;
    config->router.renormalise &= v3;
    config->first_dense = 1;
    if (v3 && (experts % 8 != 0 || experts / 8 < 2 || experts / 2 < config->router.topk))
        config->router.groups = config->router.kept_groups = 1;
}

moert_status moert_config_from_sizes(const moert_model_sizes *sizes, moert_model_config *config) {
    moert_model_config_start(config, forms[sizes->form]);
    config->vocabulary = sizes->vocabulary;
    config->hidden = sizes->hidden;
    config->layers = sizes->layers;
    config->heads = sizes->heads;
    config->kv_heads = sizes->kv_heads > 0 ? sizes->kv_heads : sizes->heads;
    config->head_size = sizes->head_size > 0 ? sizes->head_size : sizes->hidden / sizes->heads;
    config->max_positions = sizes->max_positions;
    config->intermediate = sizes->intermediate;
    config->rope = (moert_rope_scheme){.theta = 1e4, .width = config->head_size};
    config->aux_coefficient = 0.01f;
    config->router.experts = sizes->experts;
    config->router.topk = sizes->topk;
    /* weights of the best scores sum to 1 anyway, and one sigmoid over its sum is always 1 */
    config->router.renormalise = config->router.score == MOERT_SCORE_SOFTMAX ||
                                 (config->router.score == MOERT_SCORE_SIGMOID && sizes->topk > 1);
    if (config->partial_rotary > 0.0f)
        config->rope.width = (size_t)((double)config->head_size * (double)config->partial_rotary);
    if (config->shared_gate) /* a family whose windows are off */
        config->sliding_window = 0;
    for (size_t l = 0; l < config->layers && config->sliding_window > 0; l += 2) /* gpt-oss */
        moert_layer_set_add(&config->windowed, l);
    if (sizes->head_size == 0 && sizes->hidden % sizes->heads != 0)
        return MOERT_FAIL(ERROR_USAGE,
                          "--hidden %zu is not a multiple of --heads %zu; give --head-size",
                          sizes->hidden, sizes->heads);
    if (config->heads % config->kv_heads != 0)
        return MOERT_FAIL(ERROR_USAGE, "--heads %zu is not a multiple of --kv-heads %zu",
                          config->heads, config->kv_heads);
    if (config->head_size % 2 != 0)
        return MOERT_FAIL(ERROR_USAGE, "the head size, %zu, must be even for rotary positions",
                          config->head_size);
    if (sizes->topk > sizes->experts)
        return MOERT_FAIL(ERROR_USAGE, "--topk %zu exceeds --experts %zu", sizes->topk,
                          sizes->experts);
    if (config->latent.kv_rank > 0)
        size_deepseek(config);
    if (config->shared_gate || config->shared_experts > 0)
        size_dense(config);
    return moert_model_config_text(config, &config->text);
}

/* *values = the int32 tensor `name`, [shape]; NULL if the file has none. */
static moert_status read_tensor(const char *path, const moert_tensors *files, const char *name,
                                const size_t shape[3], int32_t **values) {
    const moert_tensor *tensor = moert_tensors_find(files, name);
    if (tensor == NULL)
        return MOERT_OK;
    if (tensor->rank != 3 || memcmp(tensor->shape, shape, 3 * sizeof *shape) != 0)
        return MOERT_FAIL(ERROR_MISMATCH,
                          "%s: the tensor %s must be [%zu,%zu,%zu] as tokens has it", path, name,
                          shape[0], shape[1], shape[2]);
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

/* ---- blends: WEIGHT PATH WEIGHT PATH ..., in several words or in one ---- */

static bool is_blend(const moert_option_list *paths) {
    const char *first = paths->words[0];
    return first[0] >= '0' && first[0] <= '9' && access(first, F_OK) != 0 &&
           (paths->count > 1 || strchr(first, ' ') != NULL);
}

/* *words[*count] = the words of a blend. The caller frees them, and *text, in which they may
 * lie. */
static moert_status split_blend(const moert_option_list *paths, char **text, const char ***words,
                                size_t *count) {
    const size_t bytes = strlen(paths->words[0]) + 1;
    char *rest = NULL;
    *count = 0;
    MOERT_TRY(MOERT_NEW_ARRAY(text, bytes));
    memcpy(*text, paths->words[0], bytes);
    MOERT_TRY(MOERT_NEW_ARRAY(words, paths->count + bytes));
    for (char *word = strtok_r(*text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
        (*words)[(*count)++] = word;
    for (size_t i = 1; i < paths->count; i++)
        (*words)[(*count)++] = paths->words[i];
    return *count % 2 == 0 ? MOERT_OK
                           : MOERT_FAIL(ERROR_USAGE,
                                        "--data %s ...: a blend has a weight before each path, "
                                        "such as 0.7 books 0.3 code",
                                        paths->words[0]);
}

static moert_status open_part(const char *path, size_t token_bits, double held_out,
                              moert_data **part) {
    moert_source *source;
    MOERT_TRY(moert_source_open(&path, 1, (unsigned)token_bits, &source));
    return moert_data_from_source(source, held_out, part);
}

static moert_status open_parts(const char *const *words, size_t count, size_t token_bits,
                               double held_out, moert_data **data) {
    moert_data **parts = NULL;
    uint64_t *weights = NULL;
    size_t opened = 0;
    moert_status status = MOERT_NEW_ARRAY(&parts, count);
    if (status == MOERT_OK)
        status = MOERT_NEW_ARRAY(&weights, count);
    for (size_t i = 0; i < count && status == MOERT_OK; i++)
        status = moert_blend_weight(words[2 * i], &weights[i]);
    while (opened < count && status == MOERT_OK) {
        status = open_part(words[2 * opened + 1], token_bits, held_out, &parts[opened]);
        opened += status == MOERT_OK;
    }
    if (status == MOERT_OK)
        status = moert_data_from_blend(parts, weights, count, data);
    else
        for (size_t i = 0; i < opened; i++)
            moert_data_destroy(parts[i]);
    MOERT_FREE(parts, weights);
    return status;
}

static moert_status open_blend(const moert_option_list *paths, size_t token_bits, double held_out,
                               moert_data **data) {
    char *text = NULL;
    const char **words = NULL;
    size_t count;
    moert_status status = split_blend(paths, &text, &words, &count);
    if (status == MOERT_OK)
        status = open_parts(words, count / 2, token_bits, held_out, data);
    free(words);
    free(text);
    return status;
}

void moert_train_data_say(moert_context *context, const moert_data *data, size_t sequences) {
    const size_t rows = moert_data_describe(data).rows;
    if (rows > 0)
        moert_program_say(context, "an epoch has %zu sequences; %zu sequences are %.4g epochs\n",
                          rows, sequences, (double)sequences / (double)rows);
    for (size_t i = 0; i < moert_data_describe(data).parts; i++) {
        const moert_data_info part = moert_data_describe(moert_data_part(data, i));
        const uint64_t count = moert_data_part_count(data, i, sequences);
        moert_program_say(context, "%s: %zu tokens, %llu sequences", part.path, part.tokens,
                          (unsigned long long)count);
        if (part.rows > 0)
            moert_program_say(context, ", %.4g epochs", (double)count / (double)part.rows);
        moert_program_say(context, "\n");
    }
}

moert_status moert_train_data_open(const moert_option_list *paths, const char *token_file,
                                   size_t token_bits, double held_out, moert_train_data *data) {
    if ((paths->count > 0) == (token_file != NULL))
        return MOERT_FAIL(ERROR_USAGE,
                          "give the training data by --data FILE|DIR... or by --tokens FILE");
    if (token_file != NULL && moert_text_ends_with(token_file, ".safetensors"))
        return open_token_tensor(token_file, data);
    if (token_file == NULL && is_blend(paths))
        return open_blend(paths, token_bits, held_out, &data->data);
    moert_source *source;
    MOERT_TRY(token_file != NULL
                  ? moert_source_open_raw(token_file, (unsigned)token_bits, &source)
                  : moert_source_open(paths->words, paths->count, (unsigned)token_bits, &source));
    return moert_data_from_source(source, held_out, &data->data);
}

static int32_t end_of_config(const moert_model_config *config) {
    json_t *object;
    int32_t end = -1;
    if (moert_json_parse("config.json", "the config", config->text, strlen(config->text),
                         &object) != MOERT_OK)
        return -1;
    const json_t *value = json_object_get(object, "eos_token_id");
    if (json_is_array(value))
        value = json_array_get(value, 0);
    if (json_is_integer(value) && json_integer_value(value) >= 0 &&
        (uint64_t)json_integer_value(value) < config->vocabulary)
        end = (int32_t)json_integer_value(value);
    json_decref(object);
    return end;
}

moert_status moert_train_document_end(const char *given, bool from_config,
                                      const moert_model_config *config, int32_t *end) {
    char *rest;
    *end = -1;
    if (given == NULL && from_config)
        *end = end_of_config(config);
    if (given == NULL || strcmp(given, "none") == 0)
        return MOERT_OK;
    const unsigned long long value = strtoull(given, &rest, 10);
    if (given[0] < '0' || given[0] > '9' || *rest != '\0' || value >= config->vocabulary)
        return MOERT_FAIL(
            ERROR_USAGE, "--document-end %s: expected a token below the vocabulary of %zu, or none",
            given, config->vocabulary);
    *end = (int32_t)value;
    return MOERT_OK;
}

void moert_train_data_close(moert_train_data *data) {
    moert_data_destroy(data->data);
    MOERT_FREE(data->tokens, data->targets);
}

/* Prints the lines of config.json without indentation and final commas. */
static void print_config(const void *text, FILE *file) {
    for (const char *at = text; *at != '\0'; at += strspn(at, "\n")) {
        at += strspn(at, " ");
        const size_t length = strcspn(at, "\n"), comma = length > 0 && at[length - 1] == ',';
        fprintf(file, "%.*s%c", (int)(length - comma), at, 0);
        at += length;
    }
}

moert_status moert_train_inputs_compare(moert_comm *world, const moert_data *data,
                                        const char *config_text) {
    MOERT_TRY(moert_data_compare(data, world));
    return moert_comm_compare(world, print_config, config_text, MOERT_ERROR_MISMATCH,
                              "all ranks must see the same config.json");
}
