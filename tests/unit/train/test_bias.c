// run: check=1,2 all=3,2san
/* The update of the correction bias after each step of a training, on any number of ranks. */
#include "support/model/model_run.h"
#include "train/trainer.h"

enum { STEPS = 3, BATCH = 4, LENGTH = 16, LAYERS = 2, EXPERTS = 8, TOPK = 4 };
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
    assert_int_equal(config.router.topk, TOPK);
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
    .batch.largest = BATCH,
    .micro_batches = 2,
    .length = LENGTH,
    .bias_rate = RATE,
    .max_skipped = 1,
};

/* Returns a model after this number of steps. */
static moert_model *train(size_t steps, double bias_rate) {
    moert_model *model = make_model(true);
    moert_data *data = open_tokens();
    moert_trainer_options here = options;
    bool interrupted;
    here.steps = steps;
    here.bias_rate = bias_rate;
    if (steps > 0)
        ASSERT_OK_ON_ALL(moert_train(model, data, &here, &interrupted));
    return model;
}

static bool has_biases(moert_model *model, float want[LAYERS][EXPERTS]) {
    float got[EXPERTS];
    bool same = true;
    for (size_t l = 0; l < LAYERS; l++) {
        const moert_buffer *bias = moert_layer_weight(model->layer[l].moe, MOERT_LAYER_CORRECTION);
        ASSERT_OK(moert_buffer_read(bias, 0, got, sizeof got));
        same &= memcmp(got, want[l], sizeof got) == 0;
    }
    return same;
}

/* Each training has one step more than the previous one. After a training, a forward of the whole
 * batch of the next step counts the slots of each expert. */
TEST(test_each_step_moves_the_biases_towards_balanced_loads) {
    float want[LAYERS][EXPERTS] = {{0}};
    bool moved = false;
    for (size_t step = 0; step <= STEPS; step++) {
        moert_model *model = train(step, RATE);
        ASSERT_ON_ALL(has_biases(model, want));
        if (step == STEPS)
            break;
        const model_data data = alloc_data(BATCH, LENGTH);
        for (size_t i = 0; i < BATCH * LENGTH; i++) {
            data.input[i] = tokens[step][i / LENGTH][i % LENGTH];
            data.target[i] = tokens[step][i / LENGTH][i % LENGTH + 1];
        }
        model_step(model, model_batch(model, &data), (moert_model_losses){0}, 0, 1);
        for (size_t i = 0; i < LAYERS * EXPERTS; i++) {
            const uint64_t load = moert_run_expert_counts(run_of(model))[i] * EXPERTS;
            const uint64_t sum = BATCH * LENGTH * TOPK;
            const double sign = load < sum ? 1.0 : load > sum ? -1.0 : 0.0;
            float *bias = &want[i / EXPERTS][i % EXPERTS];
            *bias = (float)((double)*bias + (double)(float)RATE * sign);
            moved |= fabsf(*bias) > 2.5f * (float)RATE;
        }
    }
    ASSERT_ON_ALL(moved); /* some expert's bias moved in the same direction in every step */
}

TEST(test_a_rate_of_0_leaves_the_biases_and_other_rates_need_them) {
    float zeros[LAYERS][EXPERTS] = {{0}};
    bool interrupted;
    ASSERT_ON_ALL(has_biases(train(STEPS, 0.0), zeros));
    ASSERT_FAILS_ON_ALL(moert_train(make_model(false), open_tokens(), &options, &interrupted),
                        MOERT_ERROR_USAGE, "no correction bias");
}

MPI_TESTS(open_test_mesh, close_test_mesh)
