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
static double run_packed(moert_model *model, bool forward_only, const int32_t *positions) {
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
        ASSERT_OK(moert_model_forward(model, &batch));
        ASSERT_OK(moert_model_loss(model, &losses, 0.0, &result));
        return result.cross_entropy;
    }
    model_step(model, batch, losses, 0, 2);
    result = model_step(model, batch, losses, 1, 2);
    for (size_t b = 0; b < moert_model_block_count(model); b++)
        model_gradients(model, b, &floats);
    return result.cross_entropy;
}

static double run(moert_model *model, bool forward_only) {
    return run_packed(model, forward_only, NULL);
}

/* ---- noise ---- */

/* Norms of the difference of two models' gradients, relative to the norm of the first: of all
 * tensors on this rank, and the largest and smallest of one tensor. */
typedef struct noise {
    double total, worst, least;
} noise;

static noise compare(const moert_model *a, const moert_model *b) {
    noise n = {.least = INFINITY};
    double norms = 0.0, differences = 0.0;
    for (size_t t = 0; t < moert_model_tensor_count(a); t++) {
        const moert_model_tensor *tensor = &moert_model_tensors(a)[t];
        if (tensor->block == NULL) /* another rank owns it */
            continue;
        const float *x = read_tensor(tensor, true),
                    *y = read_tensor(&moert_model_tensors(b)[t], true);
        double norm = 0.0;
        for (size_t i = 0; i < tensor->elements; i++)
            norm += (double)x[i] * (double)x[i];
        const double d = relative_difference(x, y, tensor->elements);
        n.worst = d > n.worst || isnan(d) ? d : n.worst;
        n.least = fmin(n.least, d);
        norms += norm;
        differences += norm > 0.0 ? d * d * norm : 0.0;
    }
    n.total = sqrt(differences / norms);
    return n;
}

TEST(test_losses_and_gradients_stay_near_those_of_float32) {
    for (int tied = 0; tied < 2; tied++) {
        moert_model *exact = new_model(tied, MOERT_PRECISION_F32),
                    *rounded = new_model(tied, MOERT_PRECISION_BF16);
        const double want = run(exact, false), got = run(rounded, false);
        const noise off = compare(exact, rounded);
        if (test_rank == 0)
            print_message("# loss %.6f, %.6f; gradients off by %.2g to %.2g\n", want, got,
                          off.least, off.worst);
        ASSERT_ON_ALL(fabs(got - want) <= 2e-3 * want && got != want);
        ASSERT_ON_ALL(off.worst <= 2e-2 && off.least >= 1e-4);
    }
}

/* ---- forms of attention, with heads that tensor cores take ---- */

typedef struct form {
    const char *name;
    bool qk_norm, qk_norm_whole, attention_bias, sinks, interleaved, packed;
    size_t head_size, rotated; /* elements of a head */
    float clip_qkv;
    size_t window;
    moert_latent_sizes latent;
} form;

static const form forms[] = {
    {.name = "norms that rotate", .qk_norm = true, .head_size = 64, .rotated = 64},
    {.name = "documents, part of a head rotated",
     .qk_norm = true,
     .packed = true,
     .head_size = 128,
     .rotated = 64},
    {.name = "no norms; sinks, a window and biases",
     .attention_bias = true,
     .sinks = true,
     .head_size = 64,
     .rotated = 64,
     .window = 9},
    {.name = "norms of all heads, clipped",
     .qk_norm = true,
     .qk_norm_whole = true,
     .head_size = 64,
     .rotated = 64,
     .clip_qkv = 2.5f},
    {.name = "latent",
     .interleaved = true,
     .rotated = 64,
     .latent = {.kv_rank = 16, .nope = 128, .rope = 64, .value = 128}},
};

static moert_model_config form_config(const form *f) {
    moert_model_config config = tiny_config();
    config.heads = 4;
    config.kv_heads = 2;
    config.head_size = f->head_size;
    config.qk_norm = f->qk_norm;
    config.qk_norm_whole = f->qk_norm_whole;
    config.attention_bias = f->attention_bias;
    config.sinks = f->sinks;
    config.clip_qkv = f->clip_qkv;
    config.latent = f->latent;
    config.rope.width = f->rotated;
    config.rope.interleaved = f->interleaved;
    config.sliding_window = f->window;
    for (size_t l = 0; l < config.layers && f->window > 0; l++)
        moert_layer_set_add(&config.windowed, l);
    return config;
}

/* Also with layers that are computed again: a layer keeps what its backward reads. */
TEST(test_every_form_of_attention_stays_near_float32) {
    int32_t positions[TOKENS];
    for (size_t t = 0; t < TOKENS; t++)
        positions[t] = (int32_t)(t % LENGTH % 10);
    for (size_t i = 0; i < MOERT_COUNT(forms); i++) {
        const int32_t *packed = forms[i].packed ? positions : NULL;
        moert_model_config config = form_config(&forms[i]);
        moert_model *exact = model_of(&config, MOERT_PRECISION_F32),
                    *rounded = model_of(&config, MOERT_PRECISION_BF16);
        config.memory.recompute = MOERT_RECOMPUTE_LAYER;
        moert_model *again = model_of(&config, MOERT_PRECISION_BF16);
        const double want = run_packed(exact, false, packed),
                     got = run_packed(rounded, false, packed),
                     repeated = run_packed(again, false, packed);
        const double off = compare(exact, rounded).total, moved = compare(rounded, again).total;
        if (test_rank == 0)
            print_message("# %s: loss %.6f, %.6f; gradients off by %.2g, computed again by %.2g\n",
                          forms[i].name, want, got, off, moved);
        ASSERT_ON_ALL(fabs(got - want) <= 2e-3 * want && got != want);
        ASSERT_ON_ALL(off >= 1e-4 && off <= 2e-2);
        ASSERT_ON_ALL(fabs(repeated - got) <= 1e-6 * got && moved <= 1e-5);
    }
}

/* ---- weights ---- */

/* Rounds the router's weights, or those that all other replicated GEMMs read. */
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
    const double loss = run(model, false);
    round_weights(rounded, false);
    round_weights(exact, false);
    ASSERT_ON_ALL(run(rounded, false) == loss && model_same_gradients(model, rounded));
    /* the loss differs, since `exact` does not round activations */
    ASSERT_ON_ALL(run(exact, false) != loss);
    round_weights(rounded, true);
    run(rounded, false);
    ASSERT_ON_ALL(!model_same_gradients(model, rounded));
}

/* ---- differences ---- */

/* The sum of the squares of all gradients, each counted once. Collective. */
static double squared_norm(const moert_model *model) {
    double mine = 0.0, *all = test_alloc(test_ranks * sizeof *all), sum = 0.0;
    for (size_t t = 0; t < moert_model_tensor_count(model); t++) {
        const moert_model_tensor *tensor = &moert_model_tensors(model)[t];
        const moert_model_range shard = moert_model_shard(tensor);
        if (shard.count == 0)
            continue;
        float *values = read_tensor(tensor, true);
        for (size_t i = shard.first; i < shard.first + shard.count; i++)
            mine += (double)values[i] * (double)values[i];
    }
    ASSERT_OK(moert_comm_allgather(test_comm, &mine, sizeof mine, all));
    for (size_t r = 0; r < test_ranks; r++)
        sum += all[r];
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

/* The step is much longer than the rounding errors of the weights, which average out. */
TEST(test_gradients_predict_the_change_of_the_loss) {
    for (int tied = 0; tied < 2; tied++) {
        moert_model *model = new_model(tied != 0, MOERT_PRECISION_BF16);
        run(model, false);
        const double squared = squared_norm(model), step = 0.03 / sqrt(squared);
        move(model, step);
        const double above = run(model, true);
        move(model, -2.0 * step);
        const double below = run(model, true);
        const double ratio = (above - below) / (2.0 * step * squared);
        if (test_rank == 0)
            print_message("# %.6f of the loss's change\n", ratio);
        ASSERT_ON_ALL(fabs(ratio - 1.0) <= 2e-2);
    }
}

MPI_TESTS(open_test_mesh, close_test_mesh)
