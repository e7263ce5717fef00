// run: check=1,2 all=3,1san,1gpu
/* The cache of keys and values: sequences that are computed in pieces have the logits of sequences
 * that are computed at once, bit for bit. */
#include <math.h>

#include "model/generate.h"
#include "support/model/model_run.h"

enum { LENGTH = 40, SEQUENCES = 3 };

static const char *const models[] = {
    "qwen3-tiny",
    "../family/deepseek-v3-yarn",      /* latent attention */
    "../family/gpt-oss",               /* windows, sinks, biases */
    "../family/mixtral-window-linear", /* windows, scaled positions */
    "../family/glm4-moe",              /* a part of each head is rotated, dense layers */
};

static model_data random_data(const moert_model *model) {
    const size_t vocabulary = moert_model_describe(model)->vocabulary;
    model_data data = alloc_data(SEQUENCES, LENGTH);
    for (size_t i = 0; i < SEQUENCES * LENGTH; i++)
        data.input[i] = (int32_t)((i * i * 31 + i * 7) % vocabulary);
    return data;
}

/* This rank's tokens [first, first + length) of each sequence. */
static moert_model_batch piece(const moert_model *model, const model_data *data, size_t first,
                               size_t length) {
    const moert_model_batch whole = model_batch(model, data);
    size_t begin, sequences;
    moert_model_partition(data->sequences, test_rank, test_ranks, &begin, &sequences);
    int32_t *tokens = test_alloc((sequences * length + 1) * sizeof *tokens);
    for (size_t i = 0; i < sequences * length; i++)
        tokens[i] = whole.input[i / length * LENGTH + first + i % length];
    return (moert_model_batch){.total_sequences = data->sequences,
                               .length = length,
                               .input = tokens,
                               .forward_only = true,
                               .past = first};
}

/* Compares the logits of the run's tokens with those in whole[sequences, LENGTH, V]. */
static bool same_logits(moert_run *run, size_t first, size_t length, const float *whole) {
    const size_t v = moert_model_describe(moert_run_model(run))->vocabulary;
    float *own = test_alloc(v * sizeof *own);
    bool same = true;
    for (size_t t = 0; t < run->batch.tokens; t++) {
        ASSERT_OK(moert_run_logits(run, t, own));
        same &= memcmp(own, whole + (t / length * LENGTH + first + t % length) * v,
                       v * sizeof *own) == 0;
    }
    return same;
}

static moert_run *open_run(moert_model *model) {
    moert_run *run;
    ASSERT_OK(moert_run_create(model, &run));
    return owned(run, moert_run_destroy);
}

/* Loads a model that only runs forwards. */
static moert_model *load_forward_only(const char *name, moert_precision dense) {
    moert_mesh *mesh = open_mesh(0);
    moert_mesh_forward_only(mesh);
    moert_model_config config = golden_config(name);
    config.dense = dense;
    moert_model *model = open_model(mesh, &config);
    ASSERT_OK(moert_model_load(model, titled("tests/golden/model/%s", name), NULL));
    return model;
}

static void check_pieces(const char *name, moert_precision dense) {
    static const size_t lengths[] = {17, 1, 5, 1, 16}, rooms[] = {18, 18, 24, 24, LENGTH};
    moert_model *model = load_forward_only(name, dense);
    const model_data data = random_data(model);
    const moert_model_batch all = piece(model, &data, 0, LENGTH);
    ASSERT_OK(moert_run_forward(run_of(model), &all));
    const float *whole = model_logits(model);
    moert_run *run = open_run(model);
    bool same = true;
    for (size_t i = 0, first = 0; i < MOERT_COUNT(lengths); first += lengths[i++]) {
        const moert_model_batch batch = piece(model, &data, first, lengths[i]);
        ASSERT_OK(moert_run_cache(run, rooms[i]));
        ASSERT_OK(moert_run_forward(run, &batch));
        same &= same_logits(run, first, lengths[i], whole);
    }
    /* other tokens behind a part of the sequence that stays cached */
    const moert_model_batch again = piece(model, &data, 12, 9);
    ASSERT_OK(moert_run_forward(run, &again));
    same &= same_logits(run, 12, 9, whole);
    ASSERT_ON_ALL(same);
}

TEST(test_pieces_of_sequences_have_the_logits_of_whole_sequences) {
    for (size_t i = 0; i < MOERT_COUNT(models); i++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            print_message("%s%s\n", models[i], bf16 ? ", bf16" : "");
            check_pieces(models[i], bf16 ? MOERT_PRECISION_BF16 : MOERT_PRECISION_F32);
        }
}

/* The sum of the logarithms of the probabilities of tokens [first, end), from whole[LENGTH, V]. */
static double log_probability(const int32_t *tokens, size_t first, size_t end, const float *whole,
                              size_t vocabulary) {
    double all = 0.0;
    for (size_t t = first; t < end; t++) {
        const float *logits = whole + (t - 1) * vocabulary;
        double sum = 0.0;
        for (size_t i = 0; i < vocabulary; i++)
            sum += exp((double)logits[i]);
        all += (double)logits[tokens[t]] - log(sum);
    }
    return all;
}

TEST(test_scores_are_those_of_the_logits) {
    static const struct {
        size_t first, count;
    } rows[] = {{12, 20}, {12, 14}, {19, 20}, {1, 2}, {1, LENGTH}, {LENGTH - 1, LENGTH}};
    moert_model *model = load_forward_only("qwen3-tiny", MOERT_PRECISION_F32);
    const size_t vocabulary = moert_model_describe(model)->vocabulary;
    const model_data data = random_data(model);
    for (int caches = 0; caches < 2; caches++) {
        const moert_generation_options options = {.window = LENGTH, .no_cache = !caches};
        moert_generation *generation;
        ASSERT_OK(moert_generation_create(model, &options, &generation));
        for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
            const moert_model_batch batch = {.total_sequences = test_ranks, /* one on each rank */
                                             .length = LENGTH,
                                             .input = data.input,
                                             .forward_only = true};
            moert_likelihood got;
            ASSERT_OK(moert_run_forward(run_of(model), &batch));
            const double want = log_probability(data.input, rows[i].first, rows[i].count,
                                                model_logits(model), vocabulary);
            ASSERT_OK(
                moert_generation_score(generation, data.input, rows[i].count, rows[i].first, &got));
            ASSERT_ON_ALL(fabs(got.log_probability - want) < 1e-9 * fabs(want));
        }
        moert_likelihood unused;
        ASSERT_REFUSED(moert_generation_score(generation, data.input, 4, 4, &unused),
                       "a text of 4 tokens has no score from token 4 on");
        ASSERT_REFUSED(moert_generation_score(generation, data.input, LENGTH + 1, 1, &unused),
                       "a text of 41 tokens is longer than the model's 40");
        moert_generation_destroy(generation);
    }
}

TEST(test_batches_that_a_cache_cannot_hold_are_refused) {
    moert_model *model = load_forward_only("qwen3-tiny", MOERT_PRECISION_F32);
    const model_data data = random_data(model);
    moert_run *run = open_run(model);
    moert_model_batch batch = piece(model, &data, 8, 1);
    ASSERT_REFUSED(moert_run_forward(run, &batch),
                   "is longer than the cache, which has room for 0");
    ASSERT_OK(moert_run_cache(run, 8));
    ASSERT_REFUSED(moert_run_forward(run, &batch),
                   "a sequence of 9 tokens is longer than the cache, which has room for 8");
    batch.past = 0;
    batch.forward_only = false;
    ASSERT_REFUSED(moert_run_forward(run, &batch), "takes no positions and has no backward");
}

TEST(test_a_model_for_forwards_refuses_a_backward) {
    moert_model *model = load_forward_only("qwen3-tiny", MOERT_PRECISION_F32);
    const model_data golden = golden_data("qwen3-tiny");
    const moert_model_batch batch = model_batch(model, &golden);
    const moert_model_losses losses = {MOERT_AUX_HUGGING_FACE, 0.02, 0.0};
    moert_model_result result;
    ASSERT_OK(moert_run_forward(run_of(model), &batch));
    ASSERT_REFUSED(moert_run_loss(run_of(model), &losses, 1.0, &result),
                   "were created without gradients");
}

MPI_TESTS(open_test_mesh, close_test_mesh)
