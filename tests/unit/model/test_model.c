// run: check=1,2 all=3,2san
/* Whole models: logits against golden files, losses, and gradients of tied embeddings. Some cases
 * have a rank without sequences. */
#include "base/phase.h"
#include "context/context.h"
#include "model/model.h"
#include "support/files.h"
#include "support/mpi.h"

#define MODELS "tests/golden/model/"

/* The first batch of a golden model, split into inputs and targets, and its logits. */
typedef struct golden {
    size_t sequences, length, vocabulary;
    int32_t *input, *target; /* [sequences,length] */
    float *logits;           /* [sequences,length,vocabulary] */
} golden;

static void golden_open(const char *name, golden *g) {
    const moert_tensors *files = open_tensors(titled(MODELS "%s/expected.safetensors", name));
    const moert_tensor *tokens = moert_tensors_find(files, "tokens"),
                       *logits = moert_tensors_find(files, "logits");
    const size_t row = tokens->shape[2];
    *g = (golden){.sequences = tokens->shape[1], .length = row - 1, .vocabulary = logits->shape[2]};
    int32_t *all = test_alloc(g->sequences * row * sizeof *all);
    g->input = test_alloc(g->sequences * g->length * sizeof *g->input);
    g->target = test_alloc(g->sequences * g->length * sizeof *g->target);
    g->logits = test_alloc(logits->elements * sizeof *g->logits);
    ASSERT_OK(moert_tensor_read_i32(tokens, 0, g->sequences * row, all));
    ASSERT_OK(moert_tensor_read_f32(logits, 0, logits->elements, g->logits));
    for (size_t s = 0; s < g->sequences; s++)
        for (size_t t = 0; t < g->length; t++) {
            g->input[s * g->length + t] = all[s * row + t];
            g->target[s * g->length + t] = all[s * row + t + 1];
        }
}

/* Returns this rank's sequences of the batch. */
static moert_model_batch my_sequences(const golden *g, size_t *first, size_t *count) {
    moert_model_partition(g->sequences, test_rank, test_ranks, first, count);
    return (moert_model_batch){g->sequences,
                               g->length,
                               g->input + *first * g->length,
                               g->target + *first * g->length,
                               false,
                               NULL,
                               0,
                               false};
}

static moert_model *load_model(const char *name, bool tied) {
    moert_model_config config = golden_config(name);
    config.tied_embeddings = tied;
    moert_model *model = open_model(test_mesh, &config);
    ASSERT_OK(moert_model_load(model, titled(MODELS "%s", name), NULL));
    return model;
}

/* Returns the relative error of this rank's logits. */
static double logit_error(moert_model *model, const golden *g, size_t first, size_t count) {
    double difference = 0.0, norm = 0.0;
    float *row = test_alloc(g->vocabulary * sizeof *row);
    for (size_t t = 0; t < count * g->length; t++) {
        const float *want = g->logits + (first * g->length + t) * g->vocabulary;
        if (moert_model_logits(model, t, row) != MOERT_OK)
            difference = INFINITY;
        for (size_t v = 0; v < g->vocabulary; v++) {
            difference += (double)(row[v] - want[v]) * (double)(row[v] - want[v]);
            norm += (double)want[v] * (double)want[v];
        }
    }
    return norm > 0.0 ? sqrt(difference / norm) : difference;
}

static void check_logits(const char *name) {
    golden g;
    size_t first, count;
    golden_open(name, &g);
    moert_model *model = load_model(name, false);
    const moert_model_batch batch = my_sequences(&g, &first, &count);
    ASSERT_OK(moert_model_forward(model, &batch));
    const double error = logit_error(model, &g, first, count);
    ASSERT_OK_ON_ALL(error <= 2e-5 ? MOERT_OK
                                   : MOERT_FAIL(ERROR_INTERNAL, "logits differ by %g", error));
}

/* Without ticks, other ranks would take a rank that draws the weights of a large model for late. */
TEST(test_drawing_the_first_weights_counts_as_progress) {
    const moert_model_config config = golden_config("qwen3-tiny");
    moert_model *model = open_model(test_mesh, &config);
    size_t held = 0;
    for (size_t t = 0; t < moert_model_tensor_count(model); t++)
        held += moert_model_tensors(model)[t].block != NULL;
    const uint64_t before = moert_phase_ticks();
    const moert_status status = moert_model_initialize(model, 7);
    const bool ticked = moert_phase_ticks() - before >= held;
    ASSERT_OK_ON_ALL(status);
    ASSERT_ON_ALL(ticked);
}

TEST(test_logits_of_mixtral_are_the_golden_ones) {
    check_logits("mixtral-tiny");
}

TEST(test_logits_of_qwen3_are_the_golden_ones) {
    check_logits("qwen3-tiny");
}

static const moert_model_tensor *find_tensor(const moert_model *model, const char *name) {
    for (size_t i = 0; i < moert_model_tensor_count(model); i++)
        if (strcmp(moert_model_tensors(model)[i].name, name) == 0)
            return &moert_model_tensors(model)[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

/* Returns the weights or the gradient of a replicated tensor. */
static float *read_tensor(const moert_model *model, const char *name, bool gradient) {
    const moert_model_tensor *tensor = find_tensor(model, name);
    float *values = test_alloc(tensor->elements * sizeof *values);
    ASSERT_OK(moert_buffer_read(gradient ? tensor->block->gradient : tensor->block->weight,
                                tensor->offset * sizeof *values, values,
                                tensor->elements * sizeof *values));
    return values;
}

/* Runs two micro-batches with the same sequences, so that the gradients equal those of one
 * batch. */
static void differentiate(moert_model *model, const golden *g, moert_model_result *result) {
    const moert_model_losses losses = {MOERT_AUX_HUGGING_FACE, 0.02, 1e-3};
    size_t first, count;
    moert_model_batch batch = my_sequences(g, &first, &count);
    for (size_t i = 0; i < 2; i++) {
        batch.accumulate = i > 0;
        ASSERT_OK(moert_model_forward(model, &batch));
        ASSERT_OK(moert_model_loss(model, &losses, 0.5, result));
        ASSERT_OK(moert_model_backward(model, i == 1));
    }
    moert_block *outer = moert_model_block(model, 0);
    ASSERT_OK(moert_block_gather(outer, outer->gradient));
}

TEST(test_a_tied_embedding_has_the_gradients_of_both_its_uses) {
    const char *embed = "model.embed_tokens.weight", *head = "lm_head.weight";
    golden g;
    moert_model_result one, both;
    golden_open("mixtral-tiny-aux", &g);
    moert_model *tied = load_model("mixtral-tiny-aux", true),
                *untied = load_model("mixtral-tiny-aux", false);
    const moert_model_tensor *tensor = find_tensor(untied, head);
    const size_t n = tensor->elements;
    float *weights = read_tensor(untied, embed, false);
    ASSERT_OK(moert_buffer_write(tensor->block->weight, tensor->offset * sizeof *weights, weights,
                                 n * sizeof *weights));
    differentiate(tied, &g, &one);
    differentiate(untied, &g, &both);
    float *sum = read_tensor(tied, embed, true), *a = read_tensor(untied, embed, true),
          *b = read_tensor(untied, head, true);
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double want = (double)a[i] + (double)b[i], d = (double)sum[i] - want;
        difference += d * d;
        norm += want * want;
    }
    assert_true(one.cross_entropy == both.cross_entropy && one.aux == both.aux && one.z == both.z);
    assert_true(norm > 0.0 && sqrt(difference / norm) < 1e-6);
}

/* Returns this rank's logits of a batch after `times` forwards. */
static float *forward(moert_model *model, const moert_model_batch *batch, size_t tokens,
                      size_t times) {
    const size_t vocabulary = moert_model_describe(model)->vocabulary;
    float *logits = test_alloc(tokens * vocabulary * sizeof *logits);
    for (size_t i = 0; i < times; i++) {
        ASSERT_OK(moert_model_forward(model, batch));
        for (size_t t = 0; t < tokens; t++)
            ASSERT_OK(moert_model_logits(model, t, logits + t * vocabulary));
    }
    return logits;
}

/* Compares logits with those of a model without prepacked weights, before and after a block is
 * cleared. */
static void check_block(const golden *g, size_t index) {
    size_t first, count;
    const moert_model_batch batch = my_sequences(g, &first, &count);
    moert_model *models[] = {load_model("qwen3-tiny", false), load_model("qwen3-tiny", false)};
    const size_t tokens = count * g->length, bytes = tokens * g->vocabulary * sizeof(float);
    bool same = true;
    for (size_t change = 0; change < 2; change++) {
        for (size_t m = 0; m < 2 && change == 1; m++) {
            moert_buffer *weight = moert_model_block(models[m], index)->weight;
            ASSERT_OK(moert_buffer_clear(weight, 0, moert_buffer_bytes(weight)));
            moert_model_weights_changed(models[m]);
        }
        float *prepacked = forward(models[0], &batch, tokens, 2);
        float *plain = forward(models[1], &batch, tokens, 1);
        same &= memcmp(prepacked, plain, bytes) == 0;
    }
    ASSERT_ON_ALL(same);
}

TEST(test_prepacked_weights_give_the_bits_of_plain_ones_and_follow_changes) {
    golden g;
    golden_open("qwen3-tiny", &g);
    moert_model *model = load_model("qwen3-tiny", false);
    const size_t blocks = moert_model_block_count(model);
    for (size_t i = 0; i < blocks; i++)
        check_block(&g, i);
}

TEST(test_sequences_that_are_too_long_are_refused) {
    moert_model *model = load_model("mixtral-tiny", false);
    const size_t length = moert_model_describe(model)->max_positions + 1;
    int32_t *tokens = test_alloc(length * sizeof *tokens);
    const moert_model_batch batch = {1, length, tokens, tokens, false, NULL, 0, false};
    moert_status status = moert_model_forward(model, &batch);
    ASSERT_ON_ALL(status == MOERT_ERROR_USAGE);
}

/* Every rank holds the same sequence of three documents. */
static void check_documents(const char *name) {
    golden g;
    golden_open(name, &g);
    moert_model *model = load_model(name, false);
    const size_t lengths[] = {g.length / 3, 1, g.length - g.length / 3 - 1};
    int32_t *positions = test_alloc(g.length * sizeof *positions);
    for (size_t d = 0, t = 0; d < MOERT_COUNT(lengths); d++)
        for (size_t i = 0; i < lengths[d]; i++)
            positions[t++] = (int32_t)i;
    const moert_model_batch packed = {
        test_ranks, g.length, g.input, NULL, .forward_only = true, .positions = positions};
    const float *got = forward(model, &packed, g.length, 1);
    bool same = true;
    for (size_t d = 0, at = 0; d < MOERT_COUNT(lengths); at += lengths[d++]) {
        size_t first, count;
        moert_model_partition(1, test_rank, test_ranks, &first, &count);
        const moert_model_batch batch = {1,    lengths[d],           g.input + at,
                                         NULL, .forward_only = true, .positions = NULL};
        const float *alone = forward(model, &batch, count * lengths[d], 1);
        same &= memcmp(got + at * g.vocabulary, alone,
                       count * lengths[d] * g.vocabulary * sizeof(float)) == 0;
    }
    ASSERT_ON_ALL(same);
}

TEST(test_a_document_has_the_same_logits_alone_and_in_a_longer_sequence) {
    check_documents("qwen3-tiny");
}

TEST(test_a_document_of_latent_attention_has_the_same_logits_alone_and_in_a_longer_sequence) {
    check_documents("../family/deepseek-v3-yarn");
}

MPI_TESTS(open_test_mesh, close_test_mesh)
