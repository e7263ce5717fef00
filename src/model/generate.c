/* Generates tokens: a forward for each token, whose logits one rank has, and a draw. */
#include "model/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/elementary.h"
#include "base/memory.h"
#include "base/rng.h"
#include "model/internal.h"

/* STREAM: random numbers for the draws. LEAST_ROOM: tokens for which a cache has room at first. */
enum { STREAM = 0x53414D50, LEAST_ROOM = 256 };

struct moert_generation {
    moert_model *model;
    moert_run *run;
    moert_generation_options options;
    int32_t *text; /* [count], with room for `room` tokens */
    size_t count, room;
    bool caches;
    size_t cache_room; /* tokens for which the cache has room */
    size_t cached;     /* tokens of the text whose keys and values are cached */
    float *logits;     /* [vocabulary] */
    int32_t *order;    /* [vocabulary] */
};

/* ---- drawing a token ---- */

static _Thread_local const float *sorted; /* the logits that compare() reads */

static int compare(const void *left, const void *right) {
    const int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    if (sorted[a] != sorted[b])
        return sorted[a] > sorted[b] ? -1 : 1;
    return (a > b) - (a < b);
}

static int ascending(const void *left, const void *right) {
    const int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    return (a > b) - (a < b);
}

/* A token's probability, relative to the most likely token. */
static double weight_of(const moert_sampling *how, float logit, double largest) {
    return moert_exp(((double)logit - largest) / how->temperature);
}

/* order[...] = the tokens that can be drawn, in ascending order. Returns their number. */
static size_t choose(const moert_sampling *how, const float *logits, size_t count, double largest,
                     int32_t *order) {
    size_t kept = count;
    for (size_t i = 0; i < count; i++)
        order[i] = (int32_t)i;
    if (how->top_k == 0 && how->top_p >= 1.0)
        return count;
    sorted = logits;
    qsort(order, count, sizeof *order, compare);
    if (how->top_k > 0)
        kept = moert_min(kept, how->top_k);
    double sum = 0.0, so_far = 0.0;
    for (size_t i = 0; i < kept; i++)
        sum += weight_of(how, logits[order[i]], largest);
    for (size_t i = 0; i < kept && how->top_p < 1.0; i++) {
        so_far += weight_of(how, logits[order[i]], largest);
        if (so_far >= how->top_p * sum)
            kept = i + 1;
    }
    qsort(order, kept, sizeof *order, ascending);
    return kept;
}

/* The token with the largest logit; of equal ones, the first. */
static size_t most_likely(const float *logits, size_t count) {
    size_t best = 0;
    for (size_t i = 1; i < count; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

int32_t moert_sample_token(const moert_sampling *how, const float *logits, size_t count,
                           double uniform, int32_t *order) {
    const size_t best = most_likely(logits, count);
    double sum = 0.0, at = 0.0;
    if (how->temperature == 0.0)
        return (int32_t)best;
    const double largest = (double)logits[best];
    const size_t kept = choose(how, logits, count, largest, order);
    for (size_t i = 0; i < kept; i++)
        sum += weight_of(how, logits[order[i]], largest);
    for (size_t i = 0; i + 1 < kept; i++) {
        at += weight_of(how, logits[order[i]], largest) / sum;
        if (uniform < at)
            return order[i];
    }
    return order[kept - 1];
}

/* ---- a text ---- */

moert_status moert_generation_create(moert_model *model, const moert_generation_options *options,
                                     moert_generation **generation) {
    const size_t vocabulary = moert_model_describe(model)->vocabulary;
    moert_generation *made;
    moert_status status;
    MOERT_TRY(MOERT_NEW(&made));
    made->model = model;
    made->options = *options;
    MOERT_TRY_OR(undo, moert_run_create(model, &made->run));
    made->caches = !options->no_cache && moert_run_cache(made->run, 1) == MOERT_OK;
    MOERT_TRY_OR(undo, MOERT_NEW_ARRAY(&made->logits, vocabulary));
    MOERT_TRY_OR(undo, MOERT_NEW_ARRAY(&made->order, vocabulary));
    *generation = made;
    return MOERT_OK;
undo:
    moert_generation_destroy(made);
    return status;
}

void moert_generation_destroy(moert_generation *g) {
    if (g == NULL)
        return;
    moert_run_destroy(g->run);
    MOERT_FREE(g->text, g->logits, g->order, g);
}

static moert_status append(moert_generation *g, int32_t token) {
    MOERT_TRY(MOERT_GROW(&g->text, &g->room, g->count + 1));
    g->text[g->count++] = token;
    return MOERT_OK;
}

moert_status moert_generation_begin(moert_generation *g, const int32_t *tokens, size_t count) {
    const size_t vocabulary = moert_model_describe(g->model)->vocabulary;
    size_t same = 0;
    if (count == 0)
        return MOERT_FAIL(ERROR_USAGE, "a text begins with at least one token");
    while (same < g->cached && same + 1 < count && g->text[same] == tokens[same])
        same++; /* the last token is not cached, since its logits are needed */
    g->cached = same;
    g->count = 0;
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || (size_t)tokens[i] >= vocabulary)
            return MOERT_FAIL(ERROR_USAGE, "token %zu of the text is %d; expected 0..%zu", i,
                              (int)tokens[i], vocabulary - 1);
        MOERT_TRY(append(g, tokens[i]));
    }
    return MOERT_OK;
}

/* Runs the tokens [first, end) of the text. The tokens from `first` - `past` on are cached. */
static moert_status run_tokens(moert_generation *g, size_t first, size_t end, size_t past) {
    const size_t seen = past + end - first;
    const moert_model_batch batch = {.total_sequences = 1,
                                     .length = end - first,
                                     .input = g->text + first,
                                     .forward_only = true,
                                     .past = past};
    while (g->caches && g->cache_room < seen)
        g->cache_room = moert_min(g->options.window, moert_max(2 * g->cache_room, LEAST_ROOM));
    if (g->caches)
        MOERT_TRY(moert_run_cache(g->run, g->cache_room));
    MOERT_TRY(moert_run_forward(g->run, &batch));
    g->cached = g->caches && seen == end ? end : 0;
    return MOERT_OK;
}

/* Whether this rank has the sequence, which is on the last rank. */
static bool has_text(const moert_generation *g) {
    const moert_comm *world = moert_model_mesh(g->model)->world;
    size_t first, count;
    moert_model_partition(1, moert_comm_rank(world), moert_comm_size(world), &first, &count);
    return count == 1;
}

moert_status moert_generation_next(moert_generation *g, int32_t *token) {
    moert_comm *world = moert_model_mesh(g->model)->world;
    const size_t vocabulary = moert_model_describe(g->model)->vocabulary,
                 begin = g->count - moert_min(g->count, g->options.window),
                 past = begin == 0 ? g->cached : 0;
    const moert_sampling *how = &g->options.sampling;
    MOERT_TRY(run_tokens(g, begin + past, g->count, past));
    const moert_status status =
        has_text(g) ? moert_run_logits(g->run, g->count - begin - past - 1, g->logits) : MOERT_OK;
    MOERT_TRY(moert_comm_agree(world, status));
    if (has_text(g))
        *token = moert_sample_token(how, g->logits, vocabulary,
                                    moert_rng_uniform(how->seed, STREAM, g->count), g->order);
    MOERT_TRY(moert_comm_broadcast(world, moert_comm_size(world) - 1, token, sizeof *token));
    return append(g, *token);
}

/* ---- scores ---- */

/* Adds the logarithm of a token's probability. */
static void add_score(const float *logits, size_t count, int32_t token, moert_likelihood *score) {
    const size_t best = most_likely(logits, count);
    double sum = 0.0;
    for (size_t i = 0; i < count; i++)
        sum += moert_exp((double)logits[i] - (double)logits[best]);
    score->log_probability += (double)logits[token] - (double)logits[best] - moert_log(sum);
    score->is_greedy &= (size_t)token == best;
}

static moert_status score_tokens(moert_generation *g, size_t past, size_t first,
                                 moert_likelihood *score) {
    const size_t vocabulary = moert_model_describe(g->model)->vocabulary;
    *score = (moert_likelihood){.is_greedy = true};
    for (size_t i = first; i < g->count && has_text(g); i++) {
        MOERT_TRY(moert_run_logits(g->run, i - 1 - past, g->logits));
        add_score(g->logits, vocabulary, g->text[i], score);
    }
    return MOERT_OK;
}

moert_status moert_generation_score(moert_generation *g, const int32_t *tokens, size_t count,
                                    size_t first, moert_likelihood *score) {
    moert_comm *world = moert_model_mesh(g->model)->world;
    if (first == 0 || first >= count)
        return MOERT_FAIL(ERROR_USAGE, "a text of %zu tokens has no score from token %zu on", count,
                          first);
    if (count > g->options.window)
        return MOERT_FAIL(ERROR_USAGE, "a text of %zu tokens is longer than the model's %zu", count,
                          g->options.window);
    MOERT_TRY(moert_comm_agree(world, moert_generation_begin(g, tokens, count)));
    const size_t past = moert_min(g->cached, first - 1); /* the logits of token first - 1 count */
    MOERT_TRY(run_tokens(g, past, count - 1, past));
    MOERT_TRY(moert_comm_agree(world, score_tokens(g, past, first, score)));
    return moert_comm_broadcast(world, moert_comm_size(world) - 1, score, sizeof *score);
}
