/* moert-generate: continues texts with a model, on any number of ranks. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/progress.h"
#include "tools/common/program.h"
#include "tools/common/text.h"
#include "train/checksums.h"

static const char *model_path, *prompt;
static moert_option_list token_words, stop_words;
static size_t most, top_k, seed;
static double temperature, top_p;
static bool reads_lines, scores, stops, caches, rates;
static moert_compute_choice compute;

static const moert_option options[] = {
    {"model", MOERT_OPTION_STRING, &model_path, NULL, "DIR",
     "directory with config.json and safetensors files, or a checkpoint"},
    {"prompt", MOERT_OPTION_STRING, &prompt, NULL, "TEXT",
     "text to continue, with a model whose tokens are bytes"},
    {"tokens", MOERT_OPTION_LIST, &token_words, NULL, "N...",
     "tokens to continue, with any model; the new tokens are printed as numbers"},
    {"lines", MOERT_OPTION_FLAG, &reads_lines, NULL, NULL,
     "continue the tokens of each line of standard input; tokens at the start of a line that are "
     "also at the start of the previous text, with its continuation, are not computed again"},
    {"score", MOERT_OPTION_FLAG, &scores, NULL, NULL,
     "with --lines, draw no tokens: of a line TOKENS | TOKENS print the log-probability of the "
     "second part after the first, and 1 if it has the most likely tokens, else 0"},
    {"count", MOERT_OPTION_UINT, &most, "100", "1..1000000", "most new tokens of a text"},
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
    {"cache", MOERT_OPTION_FLAG, &caches, "1", NULL,
     "keep the keys and values of earlier tokens; without, the tokens are the same"},
    {"rate", MOERT_OPTION_FLAG, &rates, NULL, NULL,
     "print on standard error how long the tokens of each text took"},
    MOERT_COMPUTE_OPTIONS(compute, "all other GEMMs but the router's"),
};

/* ---- tokens as text ---- */

typedef struct numbers {
    int32_t *token;
    size_t count, room;
    size_t bar; /* number of tokens before the bar of a line with --score; 0: no bar */
} numbers;

/* Appends the number of a word. */
static moert_status add_number(const char *where, const char *word, numbers *to) {
    char *end;
    errno = 0;
    const unsigned long value = strtoul(word, &end, 10);
    if (word[0] < '0' || word[0] > '9' || *end != '\0' || errno != 0 || value > INT32_MAX)
        return MOERT_FAIL(ERROR_USAGE, "%s: '%s' is not the number of a token, 0..%d", where, word,
                          INT32_MAX);
    MOERT_TRY(MOERT_GROW(&to->token, &to->room, to->count + 1));
    to->token[to->count++] = (int32_t)value;
    return MOERT_OK;
}

static moert_status read_words(const char *where, const moert_option_list *words, numbers *to) {
    for (size_t i = 0; i < words->count; i++)
        MOERT_TRY(add_number(where, words->words[i], to));
    return MOERT_OK;
}

/* Reads the numbers of the next line of standard input. Sets *any to false at its end. */
static moert_status read_line(size_t number, numbers *to, bool *any) {
    static const char blanks[] = " \t\r\n";
    char *line = NULL, *rest, where[48];
    size_t room = 0;
    moert_status status = MOERT_OK;
    to->count = to->bar = 0;
    snprintf(where, sizeof where, "line %zu of standard input", number);
    *any = getline(&line, &room, stdin) >= 0;
    for (char *word = *any ? strtok_r(line, blanks, &rest) : NULL;
         word != NULL && status == MOERT_OK; word = strtok_r(NULL, blanks, &rest))
        if (scores && strcmp(word, "|") == 0)
            to->bar = to->count;
        else
            status = add_number(where, word, to);
    if (!*any && ferror(stdin))
        status = MOERT_FAIL(ERROR_IO, "cannot read standard input: %s", strerror(errno));
    if (*any && status == MOERT_OK && to->count == 0)
        status = MOERT_FAIL(ERROR_USAGE, "%s has no tokens", where);
    else if (*any && status == MOERT_OK && scores && (to->bar == 0 || to->bar == to->count))
        status = MOERT_FAIL(ERROR_USAGE, "%s: expected tokens, a bar and tokens: '1 2 | 3'", where);
    free(line);
    return status;
}

/* ---- the job ---- */

static moert_status check(const moert_command *command) {
    (void)command;
    if (model_path == NULL)
        return MOERT_FAIL(ERROR_USAGE, "--model is needed; see --help");
    if ((prompt != NULL) + (token_words.count > 0) + reads_lines != 1)
        return MOERT_FAIL(ERROR_USAGE,
                          "give the text to continue, as --prompt, as --tokens or as --lines");
    if (scores && !reads_lines)
        return MOERT_FAIL(ERROR_USAGE, "--score needs --lines, which gives it the texts");
    return MOERT_OK;
}

typedef struct job {
    moert_context *context;
    moert_comm *world;
    moert_model_config config;
    moert_manifest *manifest;
    moert_mesh *mesh;
    moert_model *model;
    moert_generation *generation;
    numbers tokens, stop;
} job;

static moert_status read_inputs(job *j) {
    MOERT_TRY(moert_model_config_read(model_path, &j->config));
    MOERT_TRY(moert_program_compute(&compute, &j->config));
    if (prompt != NULL && j->config.vocabulary != 256)
        return MOERT_FAIL(ERROR_USAGE,
                          "--prompt is for models whose tokens are bytes; %s has a vocabulary of "
                          "%zu: give --tokens, or use launch/generate, which has tokenizers",
                          model_path, j->config.vocabulary);
    bool untied;
    MOERT_TRY(moert_model_config_check_tied(model_path, &j->config, &untied));
    MOERT_TRY(prompt != NULL ? moert_text_bytes(prompt, &j->tokens.token, &j->tokens.count)
                             : read_words("--tokens", &token_words, &j->tokens));
    if (stops && stop_words.count == 0 && j->config.end_token >= 0) {
        MOERT_TRY(MOERT_GROW(&j->stop.token, &j->stop.room, 1));
        j->stop.token[j->stop.count++] = j->config.end_token;
    }
    return stops ? read_words("--stop", &stop_words, &j->stop) : MOERT_OK;
}

static moert_status load(job *j) {
    MOERT_TRY(moert_checksums_begin(j->world, model_path, &j->manifest));
    MOERT_TRY(moert_comm_agree(j->world, read_inputs(j)));
    MOERT_TRY(moert_mesh_create(j->context, 0, &j->mesh));
    moert_mesh_forward_only(j->mesh);
    MOERT_TRY(moert_model_create(j->mesh, &j->config, &j->model));
    moert_progress_begin("reading weights", 0);
    const moert_status status = moert_checksums_finish(
        j->world, j->manifest, moert_model_load(j->model, model_path, j->manifest));
    moert_progress_end();
    return status;
}

/* Continues the text of j->tokens. */
static moert_status continue_text(const job *j) {
    const moert_text text = {.tokens = j->tokens.token,
                             .count = j->tokens.count,
                             .most = most,
                             .bytes = prompt != NULL,
                             .stop = j->stop.token,
                             .stops = j->stop.count};
    moert_text_times t;
    if (prompt != NULL)
        moert_program_say(j->context, "%s", prompt);
    MOERT_TRY(moert_text_continue(j->context, j->generation, &text, &t));
    if (rates && moert_context_rank(j->context) == 0 && t.made > 1)
        fprintf(stderr, "%zu tokens: the first after %.2f s, then %.1f tokens/s\n", t.made,
                t.first_s, (double)(t.made - 1) / t.rest_s);
    return MOERT_OK;
}

static moert_status score_text(const job *j) {
    moert_likelihood score;
    MOERT_TRY(moert_generation_score(j->generation, j->tokens.token, j->tokens.count, j->tokens.bar,
                                     &score));
    moert_program_say(j->context, "%.9g %d\n", score.log_probability, score.is_greedy);
    return MOERT_OK;
}

/* Continues or scores each line of standard input, which rank 0 reads. */
static moert_status continue_lines(job *j) {
    const bool first = moert_context_rank(j->context) == 0;
    bool any = true;
    for (size_t number = 1;; number++) {
        moert_status status = first ? read_line(number, &j->tokens, &any) : MOERT_OK;
        MOERT_TRY(moert_comm_agree(j->world, status));
        MOERT_TRY(moert_comm_broadcast(j->world, 0, &any, sizeof any));
        if (!any)
            return MOERT_OK;
        MOERT_TRY(moert_comm_broadcast(j->world, 0, &j->tokens.count, sizeof j->tokens.count));
        MOERT_TRY(moert_comm_broadcast(j->world, 0, &j->tokens.bar, sizeof j->tokens.bar));
        status = first ? MOERT_OK : MOERT_GROW(&j->tokens.token, &j->tokens.room, j->tokens.count);
        MOERT_TRY(moert_comm_agree(j->world, status));
        MOERT_TRY(moert_comm_broadcast(j->world, 0, j->tokens.token,
                                       j->tokens.count * sizeof *j->tokens.token));
        MOERT_TRY(scores ? score_text(j) : continue_text(j));
    }
}

static moert_status generate(job *j) {
    const moert_generation_options how = {.sampling = {temperature, top_k, top_p, seed},
                                          .window = j->config.max_positions,
                                          .no_cache = !caches};
    MOERT_TRY(moert_comm_agree(j->world, moert_generation_create(j->model, &how, &j->generation)));
    return reads_lines ? continue_lines(j) : continue_text(j);
}

static moert_status run(moert_context *context) {
    job j = {.context = context, .world = moert_context_comm(context)};
    moert_status status = load(&j);
    if (status == MOERT_OK)
        status = generate(&j);
    moert_generation_destroy(j.generation);
    moert_model_destroy(j.model);
    moert_mesh_destroy(j.mesh);
    moert_manifest_free(j.manifest);
    moert_model_config_free(&j.config);
    MOERT_FREE(j.tokens.token, j.stop.token, token_words.words, stop_words.words);
    return status;
}

const moert_program moert_generate_program = MOERT_PROGRAM_OF(
    "[mpirun -n R] moert-generate --model DIR --prompt TEXT|--tokens N...|--lines [OPTION...]",
    "Continues texts with a model; each rank owns a part of the experts. The same options give the "
    "same\ntokens on any number of ranks.",
    check);
MOERT_MAIN(moert_generate_program)
