// run: check=1,2 all=3,2san
/* Losses of whole models: padding, masked targets, batches that each have a part of the targets,
 * and the auxiliary loss per sequence. In some cases a rank has no sequences. */
#include "support/model/model_run.h"

#define MODEL "mixtral-tiny-aux"

/* ---- padding and parts of the targets ---- */

/* The first `used` tokens of each golden sequence, then padding up to `length`. */
static model_data pad(const model_data *golden, size_t used, size_t length) {
    model_data d = alloc_data(golden->sequences, length);
    for (size_t i = 0; i < d.sequences * length; i++) {
        const size_t at = i / length * golden->length + i % length;
        d.input[i] = i % length < used ? golden->input[at] : -1;
        d.target[i] = i % length < used ? golden->target[at] : -1;
    }
    return d;
}

static moert_model_result step(moert_model *model, const model_data *data, size_t targets,
                               moert_model_losses losses, size_t index, size_t count) {
    moert_model_batch batch = model_batch(model, data);
    batch.targets = targets;
    return model_step(model, batch, losses, index, count);
}

TEST(test_padding_routes_nowhere_and_counts_nowhere) {
    static const moert_aux_form forms[] = {MOERT_AUX_HUGGING_FACE, MOERT_AUX_MEGATRON,
                                           MOERT_AUX_SEQUENCE};
    for (size_t i = 0; i < MOERT_COUNT(forms); i++) {
        const model_data golden = golden_data(MODEL);
        const size_t used = golden.length - 5, targets = golden.sequences * used;
        const model_data shorter = pad(&golden, used, used),
                         longer = pad(&golden, used, golden.length);
        const moert_model_losses losses = {forms[i], 0.02, 0.02};
        moert_model *plain = load_golden(test_mesh, MODEL, false),
                    *padded = load_golden(test_mesh, MODEL, false);
        const moert_model_result a = step(plain, &shorter, targets, losses, 0, 1),
                                 b = step(padded, &longer, targets, losses, 0, 1);
        const moert_model_config *config = moert_model_describe(plain);
        ASSERT_ON_ALL(memcmp(moert_run_expert_counts(run_of(plain)),
                             moert_run_expert_counts(run_of(padded)),
                             config->layers * config->router.experts * sizeof(uint64_t)) == 0);
        ASSERT_ON_ALL(a.cross_entropy == b.cross_entropy && a.aux == b.aux && a.z == b.z &&
                      a.expert_load == b.expert_load && a.cross_entropy > 1.0 && a.aux > 0.5);
        ASSERT_ON_ALL(model_difference(plain, padded) < 1e-6);
    }
}

TEST(test_parts_of_the_targets_add_up) {
    const moert_model_losses losses = {MOERT_AUX_HUGGING_FACE, 0.0, 0.0};
    const model_data all = golden_data(MODEL);
    const size_t tokens = all.sequences * all.length;
    moert_model *whole = load_golden(test_mesh, MODEL, false),
                *parts = load_golden(test_mesh, MODEL, false);
    const double expected = step(whole, &all, tokens, losses, 0, 1).cross_entropy;
    double sum = 0.0;
    /* first every third target of a rank, then the other targets */
    for (size_t part = 0; part < 2; part++) {
        model_data data = pad(&all, all.length, all.length);
        size_t first;
        model_tokens(parts, &data, &first);
        for (size_t i = first; i < tokens; i++)
            if (((i - first) % 3 == 0) != (part == 0))
                data.target[i] = -1;
        sum += step(parts, &data, tokens, losses, part, 2).cross_entropy;
    }
    ASSERT_ON_ALL(fabs(sum - expected) < 1e-12 * sum);
    ASSERT_ON_ALL(model_difference(whole, parts) < 2e-6);
}

/* ---- the auxiliary loss of each sequence ---- */

enum { LENGTH = 20, ROUTER = 2 /* the block of the first layer's router */ };

/* Computes the losses and gradients of `count` sequences from sequence `first` on. Sequences 0 and
 * 1 choose different experts. */
static double run(moert_model *model, moert_aux_form form, size_t first, size_t count) {
    model_data data = alloc_data(count, LENGTH);
    for (size_t i = 0; i < count * LENGTH; i++) {
        const size_t at = first * LENGTH + i;
        data.input[i] = data.target[i] = (int32_t)(at < LENGTH ? at * 7 % 5 : at * at * 13 % 251);
    }
    return step(model, &data, 0, (moert_model_losses){form, 0.7, 0.0}, 0, 1).aux;
}

static moert_model *make_model(void) {
    const moert_model_config config = golden_config("qwen3-tiny");
    moert_model *model = open_model(test_mesh, &config);
    ASSERT_OK_ON_ALL(moert_model_initialize(model, 3));
    return model;
}

TEST(test_the_loss_of_one_sequence_is_that_of_its_layers) {
    moert_model *of_sequence = make_model(), *of_layers = make_model();
    for (size_t s = 0; s < 2; s++) {
        const double sequence = run(of_sequence, MOERT_AUX_SEQUENCE, s, 1),
                     layers = run(of_layers, MOERT_AUX_MEGATRON, s, 1);
        ASSERT_ON_ALL(fabs(sequence - layers) < 1e-12);
        ASSERT_ON_ALL(model_same_gradients(of_sequence, of_layers));
    }
}

TEST(test_the_loss_of_a_batch_is_the_mean_over_its_sequences) {
    moert_model *model = make_model();
    size_t n;
    const double one = run(model, MOERT_AUX_SEQUENCE, 0, 1);
    float *mean = model_gradients(model, ROUTER, &n);
    const double other = run(model, MOERT_AUX_SEQUENCE, 1, 1);
    const float *last = model_gradients(model, ROUTER, &n);
    for (size_t i = 0; i < n; i++)
        mean[i] = 0.5f * (mean[i] + last[i]);
    const double both = run(model, MOERT_AUX_SEQUENCE, 0, 2);
    const float *got = model_gradients(model, ROUTER, &n);
    ASSERT_ON_ALL(fabs(both - 0.5 * (one + other)) < 1e-6);
    ASSERT_ON_ALL(relative_difference(mean, got, n) < 1e-5);
    /* the load of both sequences together is more even than the load of each sequence */
    ASSERT_ON_ALL(run(model, MOERT_AUX_MEGATRON, 0, 2) < both - 1e-3);
}

MPI_TESTS(open_test_mesh, close_test_mesh)
