// run: check=1,2 all=3,2san
/* Models whose dense layers compute in bf16. Losses and gradients are near those in float32.
 * Weights, except the router's, act as their nearest bf16 values. Gradients predict the change of
 * the loss. Every token goes to all experts, so that noise changes no choice. */
#include "support/model/model_run.h"

enum { SEQUENCES = 5, LENGTH = 24, TOKENS = SEQUENCES * LENGTH };

static moert_model_config tiny_config(void) {
    moert_model_config config = golden_config("qwen3-tiny");
    config.initializer_range = 0.1f;
    config.router.experts = config.router.topk = 3;
    return config;
}

static moert_model *model_of(const moert_model_config *config, moert_precision dense) {
    moert_model_config chosen = *config;
    chosen.dense = dense;
    moert_model *model = open_model(test_mesh, &chosen);
    ASSERT_OK_ON_ALL(moert_model_initialize(model, 5));
    return model;
}

static moert_model *new_model(bool tied, moert_precision dense) {
    moert_model_config config = tiny_config();
    config.tied_embeddings = tied;
    return model_of(&config, dense);
}

/* Returns the cross-entropy. Unless `forward_only`, also computes the gradients of two
 * micro-batches with the same sequences. positions: of all sequences' tokens, or NULL. */
static double run(moert_model *model, bool forward_only, const int32_t *positions) {
    const moert_model_losses losses = {MOERT_AUX_HUGGING_FACE, 0.0, 0.0};
    model_data data = alloc_data(SEQUENCES, LENGTH);
    moert_model_result result;
    size_t first, floats;
    for (size_t i = 0; i < TOKENS; i++) {
        data.input[i] = (int32_t)((i * 37 + i * i / 7) % 128);
        data.target[i] = (int32_t)(((i + 1) * 37 + (i + 1) * (i + 1) / 7) % 128);
    }
    moert_model_batch batch = model_batch(model, &data);
    model_tokens(model, &data, &first);
    batch.positions = positions != NULL ? positions + first : NULL;
    if (forward_only) {
        batch.forward_only = true;
        ASSERT_OK(moert_run_forward(run_of(model), &batch));
        ASSERT_OK(moert_run_loss(run_of(model), &losses, 0.0, &result));
        return result.cross_entropy;
    }
    model_step(model, batch, losses, 0, 2);
    result = model_step(model, batch, losses, 1, 2);
    for (size_t b = 0; b < moert_model_block_count(model); b++)
        model_gradients(model, b, &floats);
    return result.cross_entropy;
}

/* ---- noise ---- */

/* The largest and smallest difference of two models' gradients, over the tensors on this rank,
 * relative to the norm of the first model's gradient. */
typedef struct noise {
    double worst, least;
} noise;

static noise compare(const moert_model *a, const moert_model *b) {
    noise n = {.least = INFINITY};
    for (size_t t = 0; t < moert_model_tensor_count(a); t++) {
        const moert_model_tensor *tensor = &moert_model_tensors(a)[t];
        if (tensor->block == NULL) /* another rank owns it */
            continue;
        const double d =
            relative_difference(read_tensor(tensor, true),
                                read_tensor(&moert_model_tensors(b)[t], true), tensor->elements);
        n.worst = d > n.worst || isnan(d) ? d : n.worst;
        n.least = fmin(n.least, d);
    }
    return n;
}

enum { FORMS = 7 };

/* Makes configs with untied and tied embeddings, then configs of attention with head sizes that
 * tensor cores support. */
static void make_forms(moert_model_config forms[FORMS]) {
    for (size_t i = 0; i < FORMS; i++)
        forms[i] = tiny_config();
    forms[1].tied_embeddings = true;
    for (size_t i = 2; i < FORMS; i++) {
        forms[i].heads = 4;
        forms[i].kv_heads = 2;
        forms[i].head_size = forms[i].rope.width = 64;
        forms[i].qk_norm = i < 4 || i == 5; /* norms that rotate */
    }
    forms[3].head_size = 128; /* part of a head is rotated */
    forms[4].attention_bias = forms[4].sinks = true;
    forms[4].sliding_window = 9;
    for (size_t l = 0; l < forms[4].layers; l++)
        moert_layer_set_add(&forms[4].windowed, l);
    forms[5].qk_norm_whole = true;
    forms[5].clip_qkv = 3.5f;
    forms[6].head_size = 0;
    forms[6].rope.interleaved = true;
    forms[6].latent = (moert_latent_sizes){.kv_rank = 16, .nope = 128, .rope = 64, .value = 128};
}

/* The test also recomputes layers, because recomputation must keep the values that backward
 * reads. */
TEST(test_losses_and_gradients_stay_near_those_of_float32) {
    int32_t positions[TOKENS];
    moert_model_config forms[FORMS];
    make_forms(forms);
    for (size_t t = 0; t < TOKENS; t++)
        positions[t] = (int32_t)(t % LENGTH % 10);
    for (size_t i = 0; i < FORMS; i++) {
        const int32_t *documents = i == 3 ? positions : NULL;
        moert_model *exact = model_of(&forms[i], MOERT_PRECISION_F32),
                    *rounded = model_of(&forms[i], MOERT_PRECISION_BF16);
        forms[i].memory.recompute = MOERT_RECOMPUTE_LAYER;
        moert_model *again = model_of(&forms[i], MOERT_PRECISION_BF16);
        const double want = run(exact, false, documents), got = run(rounded, false, documents),
                     repeated = run(again, false, documents);
        const noise off = compare(exact, rounded), moved = compare(rounded, again);
        if (test_rank == 0)
            print_message(
                "# form %zu: loss %.6f, %.6f; gradients off by %.2g to %.2g, again %.2g\n", i, want,
                got, off.least, off.worst, moved.worst);
        ASSERT_ON_ALL(fabs(got - want) <= 2e-3 * want && got != want);
        ASSERT_ON_ALL(off.worst <= 2e-2 && off.least >= 1e-4);
        ASSERT_ON_ALL(fabs(repeated - got) <= 1e-6 * got && moved.worst <= 1e-5);
    }
}

/* ---- weights ---- */

/* Rounds to bf16 the router's weights (`router`), or the weights of all other replicated GEMMs. */
static void round_weights(moert_model *model, bool router) {
    for (size_t t = 0; t < moert_model_tensor_count(model); t++) {
        const moert_model_tensor *tensor = &moert_model_tensors(model)[t];
        if (tensor->block == NULL || !tensor->replicated || !tensor->is_matrix ||
            (strstr(tensor->name, "mlp.gate.weight") != NULL) != router ||
            strstr(tensor->name, "embed") != NULL)
            continue;
        float *values = read_tensor(tensor, false);
        for (size_t i = 0; i < tensor->elements; i++)
            values[i] = round_to(MOERT_DTYPE_BF16, values[i]);
        write_tensor(tensor, values);
    }
    moert_model_weights_changed(model);
}

TEST(test_weights_except_the_routers_count_as_their_nearest_bf16_values) {
    moert_model *model = new_model(false, MOERT_PRECISION_BF16),
                *rounded = new_model(false, MOERT_PRECISION_BF16),
                *exact = new_model(false, MOERT_PRECISION_F32);
    const double loss = run(model, false, NULL);
    round_weights(rounded, false);
    round_weights(exact, false);
    ASSERT_ON_ALL(run(rounded, false, NULL) == loss && model_same_gradients(model, rounded));
    /* the loss differs, since `exact` does not round activations */
    ASSERT_ON_ALL(run(exact, false, NULL) != loss);
    round_weights(rounded, true);
    run(rounded, false, NULL);
    ASSERT_ON_ALL(!model_same_gradients(model, rounded));
}

/* ---- differences ---- */

/* The sum of the squares of all gradients, each counted once. Collective. */
static double squared_norm(const moert_model *model) {
    double sum = 0.0;
    for (size_t t = 0; t < moert_model_tensor_count(model); t++) {
        const moert_model_tensor *tensor = &moert_model_tensors(model)[t];
        const moert_model_range shard = moert_model_shard(tensor);
        const float *values = shard.count > 0 ? read_tensor(tensor, true) : NULL;
        for (size_t i = shard.first; i < shard.first + shard.count; i++)
            sum += (double)values[i] * (double)values[i];
    }
    sum_over_ranks(&sum, 1);
    return sum;
}

/* Moves all weights by `distance` times their gradients. */
static void move(moert_model *model, double distance) {
    for (size_t t = 0; t < moert_model_tensor_count(model); t++) {
        const moert_model_tensor *tensor = &moert_model_tensors(model)[t];
        if (tensor->block == NULL)
            continue;
        float *values = read_tensor(tensor, false), *gradient = read_tensor(tensor, true);
        for (size_t i = 0; i < tensor->elements; i++)
            values[i] += (float)(distance * (double)gradient[i]);
        write_tensor(tensor, values);
    }
    moert_model_weights_changed(model);
}

/* The step is much longer than the weights' rounding errors, which average out over the weights. */
TEST(test_gradients_predict_the_change_of_the_loss) {
    for (int tied = 0; tied < 2; tied++) {
        moert_model *model = new_model(tied != 0, MOERT_PRECISION_BF16);
        run(model, false, NULL);
        const double squared = squared_norm(model), step = 0.03 / sqrt(squared);
        move(model, step);
        const double above = run(model, true, NULL);
        move(model, -2.0 * step);
        const double below = run(model, true, NULL);
        const double ratio = (above - below) / (2.0 * step * squared);
        if (test_rank == 0)
            print_message("# %.6f of the loss's change\n", ratio);
        ASSERT_ON_ALL(fabs(ratio - 1.0) <= 2e-2);
    }
}

MPI_TESTS(open_test_mesh, close_test_mesh)
