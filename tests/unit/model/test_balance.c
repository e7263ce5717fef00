// run: check=1,2 all=3,2san
/* The auxiliary loss of each sequence in a whole model. With three ranks, some have no sequence. */
#include "context/context.h"
#include "model/model.h"
#include "support/mpi.h"

enum { LENGTH = 20, MOST = 2 };

/* Losses and the gradient of the first layer's router, of `count` sequences from `first` on. */
typedef struct outcome {
    moert_model_result result;
    float *router;
    size_t floats;
} outcome;

static void write_tokens(int32_t *tokens, size_t first, size_t count) {
    for (size_t i = 0; i < count * LENGTH; i++) {
        const size_t at = first * LENGTH + i;
        tokens[i] = (int32_t)(at < LENGTH ? at * 7 % 5 : at * at * 13 % 251);
    }
}

static outcome run(moert_model *model, moert_aux_form form, size_t first, size_t count) {
    const moert_model_losses losses = {form, 0.7, 0.0};
    int32_t tokens[MOST * LENGTH];
    size_t own, sequences;
    outcome got = {0};
    moert_model_partition(count, test_rank, test_ranks, &own, &sequences);
    write_tokens(tokens, first + own, sequences);
    const moert_model_batch batch = {count, LENGTH, tokens, tokens, false, NULL, 0, false};
    ASSERT_OK_ON_ALL(moert_model_forward(model, &batch));
    ASSERT_OK_ON_ALL(moert_model_loss(model, &losses, 1.0, &got.result));
    ASSERT_OK_ON_ALL(moert_model_backward(model, true));
    moert_block *block = moert_model_block(model, 2);
    ASSERT_OK_ON_ALL(moert_block_gather(block, block->gradient));
    got.floats = block->tensor[0].elements;
    got.router = test_alloc(got.floats * sizeof *got.router);
    ASSERT_OK(moert_buffer_read(block->gradient, block->tensor[0].offset * sizeof *got.router,
                                got.router, got.floats * sizeof *got.router));
    return got;
}

static moert_model *make_model(void) {
    const moert_model_config config = golden_config("qwen3-tiny");
    moert_model *model = open_model(test_mesh, &config);
    ASSERT_OK_ON_ALL(moert_model_initialize(model, 3));
    return model;
}

TEST(test_the_loss_of_one_sequence_is_that_of_its_layers) {
    moert_model *model = make_model();
    for (size_t s = 0; s < MOST; s++) {
        const outcome sequence = run(model, MOERT_AUX_SEQUENCE, s, 1);
        const outcome layers = run(model, MOERT_AUX_MEGATRON, s, 1);
        ASSERT_ON_ALL(fabs(sequence.result.aux - layers.result.aux) < 1e-12);
        ASSERT_ON_ALL(
            memcmp(sequence.router, layers.router, layers.floats * sizeof *layers.router) == 0);
    }
}

TEST(test_the_loss_of_a_batch_is_the_mean_over_its_sequences) {
    moert_model *model = make_model();
    const outcome a = run(model, MOERT_AUX_SEQUENCE, 0, 1),
                  b = run(model, MOERT_AUX_SEQUENCE, 1, 1),
                  both = run(model, MOERT_AUX_SEQUENCE, 0, 2),
                  together = run(model, MOERT_AUX_MEGATRON, 0, 2);
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < both.floats; i++) {
        const double want = 0.5 * ((double)a.router[i] + (double)b.router[i]);
        difference += ((double)both.router[i] - want) * ((double)both.router[i] - want);
        norm += want * want;
    }
    ASSERT_ON_ALL(fabs(both.result.aux - 0.5 * (a.result.aux + b.result.aux)) < 1e-6);
    ASSERT_ON_ALL(norm > 0.0 && sqrt(difference / norm) < 1e-5);
    /* the sequences route to different experts, so their loads together are more even */
    ASSERT_ON_ALL(together.result.aux < both.result.aux - 1e-3);
}

MPI_TESTS(open_test_mesh, close_test_mesh)
