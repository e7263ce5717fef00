// run: check=1,2 all=3,2san
/* The update of the correction bias after each step of a training, on any number of ranks. */
#include "model/internal.h"
#include "support/mpi.h"
#include "train/trainer.h"

enum { STEPS = 3, BATCH = 4, LENGTH = 16, LAYERS = 2, EXPERTS = 8 };
#define RATE 0.01

static int32_t tokens[STEPS][BATCH][LENGTH + 1];

/* Draws the tokens of all steps. */
static moert_data *open_tokens(void) {
    moert_data *data;
    for (int s = 0; s < STEPS; s++)
        for (int b = 0; b < BATCH; b++)
            for (int t = 0; t <= LENGTH; t++)
                tokens[s][b][t] = (s * 89 + b * b * 31 + t * (t % 3) * 7) % 256;
    ASSERT_OK_ON_ALL(moert_data_from_array(
        &(moert_replay){"tokens", STEPS, BATCH, LENGTH + 1, tokens[0][0], NULL}, &data));
    return owned(data, moert_data_destroy);
}

static moert_model *make_model(bool corrected) {
    moert_model_config config = golden_config("qwen3-tiny");
    assert_int_equal(config.layers, LAYERS);
    config.router.experts = EXPERTS;
    config.router.score = MOERT_SCORE_SIGMOID;
    config.router.renormalise = true;
    config.correction_bias = corrected;
    moert_model *model = open_model(test_mesh, &config);
    ASSERT_OK_ON_ALL(moert_model_initialize(model, 5));
    return model;
}

static const moert_trainer_options options = {
    .steps = STEPS,
    .seed = 1,
    .optimizer = {.beta1 = 0.9, .beta2 = 0.9, .epsilon = 1e-8},
    .schedule = {.rate = 1e-3},
    .batch = BATCH,
    .micro_batches = 2,
    .length = LENGTH,
    .bias_rate = RATE,
    .max_skipped = 1,
};

/* Returns this rank's sequences of a step, from sequence `first` of the batch on. */
static moert_model_batch batch_of(size_t step, size_t first, size_t count, int32_t *input,
                                  int32_t *target) {
    size_t own, sequences;
    moert_model_partition(count, test_rank, test_ranks, &own, &sequences);
    for (size_t i = 0; i < sequences * LENGTH; i++) {
        const int32_t *row = tokens[step][first + own + i / LENGTH];
        input[i] = row[i % LENGTH];
        target[i] = row[i % LENGTH + 1];
    }
    return (moert_model_batch){
        .total_sequences = count, .length = LENGTH, .input = input, .target = target};
}

/* Adds a step's slots to counts[LAYERS,EXPERTS], and computes its gradients. */
static void count_step(moert_model *model, size_t step, uint64_t *counts) {
    const moert_model_losses losses = {MOERT_AUX_HUGGING_FACE, 0.0, 0.0};
    int32_t input[BATCH * LENGTH], target[BATCH * LENGTH];
    moert_model_result result;
    for (size_t piece = 0; piece < 2; piece++) {
        moert_model_batch batch = batch_of(step, piece * BATCH / 2, BATCH / 2, input, target);
        batch.accumulate = piece > 0;
        ASSERT_OK_ON_ALL(moert_model_forward(model, &batch));
        ASSERT_OK_ON_ALL(moert_model_loss(model, &losses, 0.5, &result));
        for (size_t i = 0; i < LAYERS * EXPERTS; i++)
            counts[i] += moert_model_expert_counts(model)[i];
        ASSERT_OK_ON_ALL(moert_model_backward(model, piece == 1));
    }
}

static moert_buffer *bias_of(moert_model *model, size_t layer) {
    return moert_layer_weight(model->layer[layer].moe, MOERT_LAYER_CORRECTION);
}

/* Trains by hand as moert_train does; checks its biases after each step. */
TEST(test_each_step_moves_the_biases_towards_balanced_loads) {
    float want[LAYERS][EXPERTS] = {{0}}, got[EXPERTS];
    bool interrupted, same = true, moved = false;
    moert_model *model = make_model(true), *trained = make_model(true);
    moert_data *data = open_tokens();
    moert_optimizer *optimizer = open_optimizer(model, &options.optimizer);
    for (size_t s = 0; s < STEPS; s++) {
        uint64_t counts[LAYERS * EXPERTS] = {0};
        double norm;
        count_step(model, s, counts);
        ASSERT_OK_ON_ALL(moert_gradient_norm_take(optimizer->norm, &norm));
        ASSERT_OK_ON_ALL(moert_optimizer_step(
            optimizer, moert_schedule_rate(&options.schedule, s, STEPS), norm, s + 1));
        for (size_t l = 0; l < LAYERS; l++) {
            uint64_t sum = 0;
            for (size_t e = 0; e < EXPERTS; e++)
                sum += counts[l * EXPERTS + e];
            for (size_t e = 0; e < EXPERTS; e++) {
                const uint64_t load = counts[l * EXPERTS + e] * EXPERTS;
                const double sign = load < sum ? 1.0 : load > sum ? -1.0 : 0.0;
                want[l][e] = (float)((double)want[l][e] + (double)(float)RATE * sign);
            }
            ASSERT_OK(moert_buffer_write(bias_of(model, l), 0, want[l], sizeof want[l]));
        }
    }
    ASSERT_OK_ON_ALL(moert_train(trained, data, &options, &interrupted));
    for (size_t l = 0; l < LAYERS; l++) {
        ASSERT_OK(moert_buffer_read(bias_of(trained, l), 0, got, sizeof got));
        same &= memcmp(got, want[l], sizeof got) == 0;
        for (size_t e = 0; e < EXPERTS; e++)
            moved |= fabsf(got[e]) > 2.5f * (float)RATE;
    }
    ASSERT_ON_ALL(same);
    ASSERT_ON_ALL(moved); /* some expert was above or below the mean in every step */
}

TEST(test_a_rate_of_0_leaves_the_biases_and_other_rates_need_them) {
    static const float zeros[EXPERTS];
    float got[EXPERTS];
    bool interrupted;
    moert_model *model = make_model(true);
    moert_data *data = open_tokens();
    moert_trainer_options still = options;
    still.bias_rate = 0.0;
    ASSERT_OK_ON_ALL(moert_train(model, data, &still, &interrupted));
    ASSERT_OK(moert_buffer_read(bias_of(model, 1), 0, got, sizeof got));
    ASSERT_ON_ALL(memcmp(got, zeros, sizeof got) == 0);
    ASSERT_FAILS_ON_ALL(moert_train(make_model(false), data, &options, &interrupted),
                        MOERT_ERROR_USAGE, "no correction bias");
}

MPI_TESTS(open_test_mesh, close_test_mesh)
