/* moert-generate: continues a text with a model, on any number of ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/progress.h"
#include "model/generate.h"
#include "tools/common/bytes.h"
#include "tools/common/program.h"
#include "train/checksums.h"

static const char *model_path, *prompt;
static moert_option_list token_words, stop_words;
static size_t most, top_k, seed;
static double temperature, top_p;
static bool stops;
static moert_compute_choice compute;

static const moert_option options[] = {
    {"model", MOERT_OPTION_STRING, &model_path, NULL, "DIR",
     "directory with config.json and safetensors files, or a checkpoint"},
    {"prompt", MOERT_OPTION_STRING, &prompt, NULL, "TEXT",
     "text to continue, with a model whose tokens are bytes"},
    {"tokens", MOERT_OPTION_LIST, &token_words, NULL, "N...",
     "tokens to continue, with any model; the new tokens are printed as numbers"},
    {"count", MOERT_OPTION_UINT, &most, "100", "1..1000000", "most new tokens"},
    {"temperature", MOERT_OPTION_FLOAT, &temperature, "0.7", "0..100",
     "logits are divided by it; 0: always the most likely token"},
    {"top-k", MOERT_OPTION_UINT, &top_k, "0", "0..1000000",
     "draw from this number of most likely tokens; 0 = from all"},
    {"top-p", MOERT_OPTION_FLOAT, &top_p, "1", "0..1",
     "draw from the fewest tokens that together have this probability, after --top-k"},
    {"seed", MOERT_OPTION_UINT, &seed, "1", "0..9007199254740992", "seed of the draws"},
    {"stop", MOERT_OPTION_LIST, &stop_words, NULL, "N...",
     "tokens that end the text; default: eos_token_id of the model"},
    {"stops", MOERT_OPTION_FLAG, &stops, "1", NULL, "end the text at a token of --stop"},
    MOERT_COMPUTE_OPTIONS(compute, "all other GEMMs but the router's"),
};

/* The numbers of an option's words. */
typedef struct numbers {
    int32_t *token;
    size_t count;
} numbers;

static moert_status read_numbers(const char *option, const moert_option_list *words, numbers *to) {
    MOERT_TRY(MOERT_NEW_ARRAY(&to->token, words->count));
    for (size_t i = 0; i < words->count; i++) {
        char *end;
        const unsigned long value = strtoul(words->words[i], &end, 10);
        if (words->words[i][0] < '0' || words->words[i][0] > '9' || *end != '\0' ||
            value > INT32_MAX)
            return MOERT_FAIL(ERROR_USAGE, "--%s %s: expected the numbers of tokens", option,
                              words->words[i]);
        to->token[to->count++] = (int32_t)value;
    }
    return MOERT_OK;
}

static moert_status check(const moert_command *command) {
    (void)command;
    if (model_path == NULL)
        return MOERT_FAIL(ERROR_USAGE, "--model is needed; see --help");
    if ((prompt != NULL) == (token_words.count > 0))
        return MOERT_FAIL(ERROR_USAGE, "give the text to continue, as --prompt or as --tokens");
    return MOERT_OK;
}

typedef struct job {
    moert_context *context;
    moert_comm *world;
    moert_model_config config;
    moert_manifest *manifest;
    moert_mesh *mesh;
    moert_model *model;
    numbers tokens, stop;
} job;

static moert_status read_inputs(job *j) {
    MOERT_TRY(moert_model_config_read(model_path, &j->config));
    moert_program_compute(&compute, &j->config);
    if (prompt != NULL && j->config.vocabulary != 256)
        return MOERT_FAIL(ERROR_USAGE,
                          "--prompt is for models whose tokens are bytes; %s has a vocabulary of "
                          "%zu: give --tokens",
                          model_path, j->config.vocabulary);
    bool untied;
    MOERT_TRY(moert_model_config_check_tied(model_path, &j->config, &untied));
    MOERT_TRY(read_numbers("tokens", &token_words, &j->tokens));
    return read_numbers("stop", &stop_words, &j->stop);
}

static moert_status load(job *j) {
    MOERT_TRY(moert_checksums_begin(j->world, model_path, &j->manifest));
    MOERT_TRY(moert_comm_agree(j->world, read_inputs(j)));
    MOERT_TRY(moert_mesh_create(j->context, 0, &j->mesh));
    MOERT_TRY(moert_model_create(j->mesh, &j->config, &j->model));
    moert_progress_begin("reading weights", 0);
    const moert_status status = moert_checksums_finish(
        j->world, j->manifest, moert_model_load(j->model, model_path, j->manifest));
    moert_progress_end();
    return status;
}

/* Whether the token ends the text. */
static bool ends(const job *j, int32_t token) {
    if (j->stop.count == 0)
        return token == j->config.end_token;
    for (size_t i = 0; i < j->stop.count; i++)
        if (j->stop.token[i] == token)
            return true;
    return false;
}

/* Prints the new tokens in one line. */
static moert_status generate_tokens(const job *j, moert_generation *generation) {
    bool ended = false;
    MOERT_TRY(moert_comm_agree(
        j->world, moert_generation_begin(generation, j->tokens.token, j->tokens.count)));
    for (size_t i = 0; i < most && !ended; i++) {
        int32_t token;
        MOERT_TRY(moert_generation_next(generation, &token));
        ended = stops && ends(j, token);
        moert_program_say(j->context, "%s%d", i > 0 ? " " : "", (int)token);
    }
    moert_program_say(j->context, "\n");
    return MOERT_OK;
}

static moert_status generate(const job *j) {
    const moert_sampling how = {temperature, top_k, top_p, seed};
    const size_t window = j->config.max_positions;
    moert_generation *generation = NULL;
    if (prompt != NULL) {
        moert_program_say(j->context, "%s", prompt);
        MOERT_TRY(moert_generate_bytes(j->context, j->model, &how, window, prompt, most));
        moert_program_say(j->context, "\n");
        return MOERT_OK;
    }
    moert_status status =
        moert_comm_agree(j->world, moert_generation_create(j->model, &how, window, &generation));
    if (status == MOERT_OK)
        status = generate_tokens(j, generation);
    moert_generation_destroy(generation);
    return status;
}

static moert_status run(moert_context *context) {
    job j = {.context = context, .world = moert_context_comm(context)};
    moert_status status = load(&j);
    if (status == MOERT_OK)
        status = generate(&j);
    moert_model_destroy(j.model);
    moert_mesh_destroy(j.mesh);
    moert_manifest_free(j.manifest);
    moert_model_config_free(&j.config);
    MOERT_FREE(j.tokens.token, j.stop.token, token_words.words, stop_words.words);
    return status;
}

const moert_program moert_generate_program = MOERT_PROGRAM_OF(
    "[mpirun -n R] moert-generate --model DIR --prompt TEXT|--tokens N... [OPTION...]",
    "Continues a text with a model; each rank owns a part of the experts. The same options give "
    "the same\ntokens on any number of ranks.",
    check);
MOERT_MAIN(moert_generate_program)
