// run: check=1,2 all=3,2san
/* The sums that moert_model_watch shows of a model's layers are compared with sums over the model's
 * buffers. All ranks together give the same bits as one rank. */
#include "layer/internal.h"
#include "model/watch.h"
#include "support/layer/layer_run.h"
#include "support/model/model_run.h"

#define MODEL "mixtral-tiny-aux"

enum { SEQUENCES = 5, LENGTH = 16, PADDING = 3 };

/* Runs a forward of made-up tokens; the last tokens of each sequence are padding. */
static void forward(moert_model *model, size_t piece) {
    const moert_model_losses losses = {MOERT_AUX_HUGGING_FACE, 0.01, 0.0};
    model_data data = alloc_data(SEQUENCES, LENGTH);
    for (size_t i = 0; i < SEQUENCES * LENGTH; i++) {
        const bool real = i % LENGTH < LENGTH - PADDING;
        data.input[i] = real ? (int32_t)((i * 37 + piece * 11) % 256) : -1;
        data.target[i] = real ? (int32_t)((i * 29 + 5) % 256) : -1;
    }
    moert_model_batch batch = model_batch(model, &data);
    moert_model_result result;
    batch.accumulate = piece > 0;
    ASSERT_OK(moert_run_forward(run_of(model), &batch));
    ASSERT_OK(moert_run_loss(run_of(model), &losses, 0.5, &result));
}

/* Computes this rank's sums of squares and of -r log r from the model's buffers. */
static void sum_by_hand(moert_model *model, double *squares, double *entropies) {
    const size_t rows = run_of(model)->batch.tokens, experts = model->config.router.experts;
    for (size_t l = 0; l < model->config.layers && rows > 0; l++) {
        const size_t n = rows * model->config.hidden;
        const float *out = read_floats(run_of(model)->layer[l].out, n),
                    *score =
                        read_floats(run_of(model)->layer[l].pass->routing.scores, rows * experts);
        for (size_t i = 0; i < n; i++)
            squares[l] += (double)out[i] * (double)out[i];
        for (size_t i = 0; i < rows * experts; i++)
            entropies[l] -= score[i] > 0.0f ? (double)score[i] * log((double)score[i]) : 0.0;
    }
}

TEST(test_the_sums_are_those_of_all_micro_batches_of_a_step) {
    enum { LAYERS = 2, PIECES = 2 };
    moert_model *model = load_golden(test_mesh, MODEL, false);
    moert_model_watch *watch = NULL;
    double sums[2 * LAYERS] = {0};
    assert_int_equal(model->config.layers, LAYERS);
    ASSERT_OK(moert_model_watch_create(run_of(model), &watch));
    forward(model, 7);
    ASSERT_OK(moert_model_watch_take(watch, true)); /* this forward belongs to an earlier step */
    for (size_t piece = 0; piece < PIECES; piece++) {
        forward(model, piece);
        ASSERT_OK(moert_model_watch_take(watch, piece == 0));
        sum_by_hand(model, sums, sums + LAYERS);
        ASSERT_OK(moert_run_backward(run_of(model), piece + 1 == PIECES));
    }
    sum_over_ranks(sums, 2 * LAYERS);
    bool right = true;
    for (size_t l = 0; l < LAYERS; l++) {
        const double rms = sqrt(sums[l] / (PIECES * SEQUENCES * LENGTH * 64.0)),
                     entropy = sums[LAYERS + l] / (PIECES * SEQUENCES * (LENGTH - PADDING));
        right &= fabs(moert_model_watch_activation(watch, l) / rms - 1.0) < 1e-6;
        right &= fabs(moert_model_watch_entropy(watch, l) / entropy - 1.0) < 1e-6;
        right &= entropy > 0.5 && entropy < log(8.0) && rms > 0.01;
    }
    moert_model_watch_destroy(watch);
    ASSERT_ON_ALL(right);
}

/* All ranks compute together, then each rank computes the whole batch alone. */
TEST(test_the_digits_do_not_depend_on_the_ranks) {
    moert_context *context = NULL;
    moert_mesh *alone = NULL;
    moert_model *models[2];
    double values[2][4];
    ASSERT_OK_ON_ALL(moert_context_create(MPI_COMM_SELF, NULL, &context));
    ASSERT_OK_ON_ALL(moert_mesh_create(context, 0, &alone));
    models[0] = load_golden(test_mesh, MODEL, false);
    models[1] = load_golden(alone, MODEL, false);
    for (size_t i = 0; i < 2; i++) {
        moert_model_watch *watch = NULL;
        ASSERT_OK(moert_model_watch_create(run_of(models[i]), &watch));
        forward(models[i], 0);
        ASSERT_OK(moert_model_watch_take(watch, true));
        for (size_t l = 0; l < 2; l++) {
            values[i][l] = moert_model_watch_activation(watch, l);
            values[i][2 + l] = moert_model_watch_entropy(watch, l);
        }
        moert_model_watch_destroy(watch);
    }
    ASSERT_ON_ALL(memcmp(values[0], values[1], sizeof values[0]) == 0);
    release_owned();
    moert_mesh_destroy(alone);
    moert_context_destroy(context);
}

MPI_TESTS(open_test_mesh, close_test_mesh)
