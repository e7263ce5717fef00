// run: check=1,2 all=3,2san
/* The update of the correction bias after each step of a training, on any number of ranks. */
#include "model/internal.h"
#include "support/mpi.h"
#include "train/trainer.h"

enum { STEPS = 3, BATCH = 4, LENGTH = 16, LAYERS = 2, EXPERTS = 8 };
#define RATE 0.01

static void draw_tokens(int32_t tokens[STEPS][BATCH][LENGTH + 1]) {
    for (int s = 0; s < STEPS; s++)
        for (int b = 0; b < BATCH; b++)
            for (int t = 0; t <= LENGTH; t++)
                tokens[s][b][t] = (s * 89 + b * b * 31 + t * (t % 3) * 7) % 256;
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

static moert_trainer_options options_of(double rate) {
    return (moert_trainer_options){.steps = STEPS,
                                   .seed = 1,
                                   .optimizer = {.beta1 = 0.9, .beta2 = 0.9, .epsilon = 1e-8},
                                   .schedule = {.rate = 1e-3},
                                   .batch = BATCH,
                                   .micro_batches = 2,
                                   .length = LENGTH,
                                   .bias_rate = rate,
                                   .max_skipped = 1};
}

/* Returns this rank's sequences of a step, from sequence `first` of the batch on. */
static moert_model_batch batch_of(int32_t tokens[BATCH][LENGTH + 1], size_t first, size_t count,
                                  int32_t *input, int32_t *target) {
    size_t own, sequences;
    moert_model_partition(count, test_rank, test_ranks, &own, &sequences);
    for (size_t i = 0; i < sequences * LENGTH; i++) {
        const int32_t *row = tokens[first + own + i / LENGTH];
        input[i] = row[i % LENGTH];
        target[i] = row[i % LENGTH + 1];
    }
    return (moert_model_batch){
        .total_sequences = count, .length = LENGTH, .input = input, .target = target};
}

/* Adds a step's slots to counts[LAYERS,EXPERTS], and computes its gradients. */
static void count_step(moert_model *model, int32_t tokens[BATCH][LENGTH + 1], uint64_t *counts) {
    const moert_model_losses losses = {MOERT_AUX_HUGGING_FACE, 0.0, 0.0};
    int32_t input[BATCH * LENGTH], target[BATCH * LENGTH];
    moert_model_result result;
    for (size_t piece = 0; piece < 2; piece++) {
        moert_model_batch batch = batch_of(tokens, piece * BATCH / 2, BATCH / 2, input, target);
        batch.accumulate = piece > 0;
        ASSERT_OK_ON_ALL(moert_model_forward(model, &batch));
        ASSERT_OK_ON_ALL(moert_model_loss(model, &losses, 0.5, &result));
        for (size_t i = 0; i < LAYERS * EXPERTS; i++)
            counts[i] += moert_model_expert_counts(model)[i];
        ASSERT_OK_ON_ALL(moert_model_backward(model, piece == 1));
    }
}

static void read_bias(moert_model *model, size_t layer, float *bias) {
    ASSERT_OK(moert_buffer_read(moert_layer_weight(model->layer[layer].moe, MOERT_LAYER_CORRECTION),
                                0, bias, EXPERTS * sizeof *bias));
}

/* Trains by hand as moert_train does; checks its biases after each step. */
TEST(test_each_step_moves_the_biases_towards_balanced_loads) {
    static int32_t tokens[STEPS][BATCH][LENGTH + 1];
    float want[LAYERS][EXPERTS] = {{0}}, got[EXPERTS];
    moert_data *data;
    bool interrupted, same = true, moved = false;
    draw_tokens(tokens);
    moert_model *model = make_model(true), *trained = make_model(true);
    ASSERT_OK_ON_ALL(moert_data_from_array(
        &(moert_replay){"tokens", STEPS, BATCH, LENGTH + 1, tokens[0][0], NULL}, &data));
    moert_optimizer *optimizer;
    const moert_trainer_options options = options_of(RATE);
    ASSERT_OK_ON_ALL(moert_optimizer_create(model, &options.optimizer, &optimizer));
    for (size_t s = 0; s < STEPS; s++) {
        uint64_t counts[LAYERS * EXPERTS] = {0};
        double norm;
        count_step(model, tokens[s], counts);
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
            ASSERT_OK(
                moert_buffer_write(moert_layer_weight(model->layer[l].moe, MOERT_LAYER_CORRECTION),
                                   0, want[l], sizeof want[l]));
        }
    }
    ASSERT_OK_ON_ALL(moert_train(trained, data, &options, &interrupted));
    for (size_t l = 0; l < LAYERS; l++) {
        read_bias(trained, l, got);
        same &= memcmp(got, want[l], sizeof got) == 0;
        for (size_t e = 0; e < EXPERTS; e++)
            moved |= fabsf(got[e]) > 2.5f * (float)RATE;
    }
    ASSERT_ON_ALL(same);
    ASSERT_ON_ALL(moved); /* some expert was above or below the mean in every step */
    moert_optimizer_destroy(optimizer);
    moert_data_destroy(data);
}

TEST(test_a_rate_of_0_leaves_the_biases_and_other_rates_need_them) {
    static int32_t tokens[STEPS][BATCH][LENGTH + 1];
    float got[EXPERTS];
    moert_data *data;
    bool interrupted, zero = true;
    draw_tokens(tokens);
    moert_model *model = make_model(true);
    ASSERT_OK_ON_ALL(moert_data_from_array(
        &(moert_replay){"tokens", STEPS, BATCH, LENGTH + 1, tokens[0][0], NULL}, &data));
    moert_trainer_options options = options_of(0.0);
    ASSERT_OK_ON_ALL(moert_train(model, data, &options, &interrupted));
    read_bias(model, 1, got);
    for (size_t e = 0; e < EXPERTS; e++)
        zero &= got[e] == 0.0f;
    ASSERT_ON_ALL(zero);
    options.bias_rate = RATE;
    ASSERT_FAILS_ON_ALL(moert_train(make_model(false), data, &options, &interrupted),
                        MOERT_ERROR_USAGE, "no correction bias");
    moert_data_destroy(data);
}

MPI_TESTS(open_test_mesh, close_test_mesh)
