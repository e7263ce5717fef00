// run: check=1,2 all=3,2san
/* Whole models: gradients of tied embeddings, prepacked weights, documents. Some cases have a rank
 * without sequences. e2e/golden_model.sh compares logits and gradients with golden files. */
#include "base/phase.h"
#include "support/model/model_run.h"

/* Drawing the weights of a large model must report progress; otherwise the watchdog would consider
 * the rank late. */
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

/* Runs two micro-batches with the same sequences, so the gradients equal those of one batch.
 * Gathers the gradients of the embedding and the head. */
static moert_model_result differentiate(moert_model *model, const model_data *data) {
    const moert_model_losses losses = {MOERT_AUX_HUGGING_FACE, 0.02, 1e-3};
    size_t floats;
    model_step(model, model_batch(model, data), losses, 0, 2);
    const moert_model_result result = model_step(model, model_batch(model, data), losses, 1, 2);
    model_gradients(model, 0, &floats);
    return result;
}

TEST(test_a_tied_embedding_has_the_gradients_of_both_its_uses) {
    const model_data golden = golden_data("mixtral-tiny-aux");
    moert_model *tied = load_golden(test_mesh, "mixtral-tiny-aux", true),
                *untied = load_golden(test_mesh, "mixtral-tiny-aux", false);
    const char *name = "model.embed_tokens.weight";
    const moert_model_tensor *embed = find_tensor(untied, name),
                             *head = find_tensor(untied, "lm_head.weight");
    write_tensor(head, read_tensor(embed, false));
    const moert_model_result one = differentiate(tied, &golden),
                             both = differentiate(untied, &golden);
    float *sum = read_tensor(embed, true), *of_head = read_tensor(head, true);
    for (size_t i = 0; i < head->elements; i++)
        sum[i] += of_head[i];
    assert_true(one.cross_entropy == both.cross_entropy && one.aux == both.aux && one.z == both.z);
    assert_true(relative_difference(sum, read_tensor(find_tensor(tied, name), true),
                                    head->elements) < 1e-6);
}

/* Returns this rank's logits after `times` forwards. */
static float *forward(moert_model *model, const moert_model_batch *batch, size_t times) {
    float *logits = NULL;
    for (size_t i = 0; i < times; i++) {
        ASSERT_OK(moert_run_forward(run_of(model), batch));
        logits = model_logits(model);
    }
    return logits;
}

/* The second forward prepacks weights. The test compares logits with those of a model without
 * prepacked weights, before and after it sets the weights of each block to zero. */
TEST(test_prepacked_weights_give_the_bits_of_plain_ones_and_follow_changes) {
    const model_data golden = golden_data("qwen3-tiny");
    size_t blocks = 1;
    for (size_t b = 0; b < blocks; b++) {
        moert_model *models[] = {load_golden(test_mesh, "qwen3-tiny", false),
                                 load_golden(test_mesh, "qwen3-tiny", false)};
        const moert_model_batch batch = model_batch(models[0], &golden);
        blocks = moert_model_block_count(models[0]);
        for (size_t change = 0; change < 2; change++) {
            for (size_t m = 0; m < 2 && change == 1; m++) {
                moert_buffer *weight = moert_model_block(models[m], b)->weight;
                ASSERT_OK(moert_buffer_clear(weight, 0, moert_buffer_bytes(weight)));
                moert_model_weights_changed(models[m]);
            }
            const float *prepacked = forward(models[0], &batch, 2),
                        *plain = forward(models[1], &batch, 1);
            const size_t n =
                run_of(models[0])->batch.tokens * moert_model_describe(models[0])->vocabulary;
            ASSERT_ON_ALL(memcmp(prepacked, plain, n * sizeof *plain) == 0);
        }
    }
}

TEST(test_sequences_that_are_too_long_are_refused) {
    moert_model *model = load_golden(test_mesh, "mixtral-tiny", false);
    const model_data data = alloc_data(1, moert_model_describe(model)->max_positions + 1);
    const moert_model_batch batch = model_batch(model, &data);
    ASSERT_REFUSED(moert_run_forward(run_of(model), &batch), "exceed the model's max_position");
}

/* Every rank holds the same sequence of three documents. */
static void check_documents(const char *name) {
    const model_data golden = golden_data(name);
    moert_model *model = load_golden(test_mesh, name, false);
    const size_t vocabulary = moert_model_describe(model)->vocabulary;
    const size_t length = golden.length, lengths[] = {length / 3, 1, length - length / 3 - 1};
    int32_t *positions = test_alloc(length * sizeof *positions);
    for (size_t d = 0, t = 0; d < MOERT_COUNT(lengths); d++)
        for (size_t i = 0; i < lengths[d]; i++)
            positions[t++] = (int32_t)i;
    const moert_model_batch packed = {
        test_ranks, length, golden.input, NULL, .forward_only = true, .positions = positions};
    const float *got = forward(model, &packed, 1);
    bool same = true;
    for (size_t d = 0, at = 0; d < MOERT_COUNT(lengths); at += lengths[d++]) {
        const moert_model_batch batch = {1, lengths[d], golden.input + at, NULL,
                                         .forward_only = true};
        const float *alone = forward(model, &batch, 1);
        same &= memcmp(got + at * vocabulary, alone,
                       run_of(model)->batch.tokens * vocabulary * sizeof *got) == 0;
    }
    ASSERT_ON_ALL(same);
}

TEST(test_a_document_has_the_same_logits_alone_and_in_a_longer_sequence) {
    check_documents("qwen3-tiny");
    check_documents("../family/deepseek-v3-yarn"); /* latent attention */
}

MPI_TESTS(open_test_mesh, close_test_mesh)
